// Package levels reads what a PostgreSQL server process says about itself. It reads the text of the statement, the
// wait event, and the list error_context_stack, of which each node is a level: a line of CONTEXT in an error message.
// The list has the functions in PL/pgSQL, SQL, PL/Perl and PL/Python with line and statement. It also has the line of a
// COPY, the block of a VACUUM, and the row for which the process waits.
//
// All data that may change while the process runs come from a copy that was made together with the copy of its stack
// (see Process.ExtraReads). Names of functions and relations in use, and some statements of PL/pgSQL functions in use,
// are read afterwards, and compared with the copy. The layouts of the structures are those of the supported PostgreSQL
// versions on 64-bit machines. The package checks data where it can. It silently leaves out data that fail a check or
// belong to another version.
//
// The package does not know how a process is stopped and copied, ELF files, or how a level is printed.
package levels

import (
	"encoding/binary"
	"sync/atomic"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// Memory copies memory of the process from addr into p and returns how many bytes it got.
type Memory func(addr uint64, p []byte) int

// Code describes a code address.
type Code struct {
	// Module is the base name of the file. Server is set if the address is in the server's own program.
	Module string
	Server bool
	// Function is the name of the function that begins at the address, or "" if no symbol names it.
	Function string
	// Size is the length of the function in bytes, 0 if unknown.
	Size int
	// Image is the build-id of the file, and Offset the address in it. They are the same in all processes that have
	// the file. Image is "" if it is unknown.
	Image  string
	Offset uint64
}

// Frame is a frame of the stack whose function has not returned.
type Frame struct {
	// Index is the number by which the caller of Read identifies the frame.
	Index int
	// Start and End are the bounds of the frame: from the canonical frame address (CFA) of the frame that it called to
	// its own CFA.
	Start, End uint64
	// Module is the base name of the file with the frame's code, and Function its function, "" if unknown.
	Module, Function string
}

// Input is one snapshot of a process.
type Input struct {
	// Frozen is the memory that was copied together: the stack and the extra reads.
	Frozen Memory
	// Sampled is set if the process ran on during the copy: the extra reads were copied shortly after the stack. The
	// words at ExtraReads.Head, Variables and Counters had the same values before and after the stack was copied.
	Sampled bool
	// Live is the current memory of the process.
	Live Memory
	// Code describes code addresses.
	Code func(addr uint64) Code
	// Frames are the frames of the stack, innermost first.
	Frames []Frame
}

// Result has the facts from a snapshot. Unknown facts are empty.
type Result struct {
	// Levels are innermost first.
	Levels []Placed
	// Query is at most MaxQuery bytes of the statement's text. QueryCut is set if it is truncated.
	Query    string
	QueryCut bool
	Wait     backtrace.Wait
	// Missing is the reason why levels are missing, "" if none are.
	Missing string
}

// Placed is a level with the number of its frame (Frame.Index).
type Placed struct {
	Frame int
	Level backtrace.Level
}

// MaxQuery bounds the bytes of a query's text that are read.
const MaxQuery = 1024

const (
	// maxLevels bounds the levels that are read. A capture copies fewer nodes.
	maxLevels = 256
	// reach is how many bytes are copied from the target of a pointer in a level's argument.
	reach = 512
	// pointerSize and numberSize are the sizes of a pointer and of an int or Oid.
	pointerSize, numberSize = 8, 4
)

// Process is a server process of a known version.
type Process struct {
	server *Server
	layout *layout
	bias   uint64
	// plpgsqlAt and spiAt are the addresses of plpgsql_exec_error_callback and _SPI_error_callback. They are 0 until the
	// first level with that callback has been read.
	plpgsqlAt, spiAt atomic.Uint64
}

// Process returns the Process for one process. bias is the load bias of the server's program in it.
func (s *Server) Process(bias uint64) *Process {
	return &Process{server: s, layout: s.layout, bias: bias}
}

// ExtraReads lists the memory to copy together with the stack: Variables, Counters, and the nodes of the list
// error_context_stack. Head is the address of the pointer to the first node. If the argument of a node is on the stack,
// OnStack lists the pointers in it whose targets are copied. For a callback in Known, the pointers in Known replace
// OnStack. If the argument is not on the stack, Elsewhere is the number of its bytes to copy.
type ExtraReads struct {
	Variables []Variable
	Head      uint64
	OnStack   []Deref
	Known     []Known
	Elsewhere int
	Counters  []Counter
}

// Counter is a 32-bit number, Offset bytes after the target of the pointer at Address. The process increments the number
// before and after it changes its entry in pg_stat_activity, for example at the start of a statement. So the number is odd
// during a change.
type Counter struct {
	Address uint64
	Offset  int
}

// Known lists the pointers in the arguments of the callback at the address Callback.
type Known struct {
	Callback uint64
	OnStack  []Deref
}

// Variable is a pointer in the process's memory, at Address. Follow is the number of bytes to copy from its target; 0:
// none.
type Variable struct {
	Address uint64
	Follow  int
}

// Deref names a pointer that is stored Offset bytes after the address in a callback's argument. Length bytes are copied
// from where that pointer points.
type Deref struct {
	Offset, Length int
}

// ExtraReads returns the memory of the process to copy with its stack.
func (p *Process) ExtraReads() ExtraReads {
	l := p.layout
	estate := l.estate()
	t := ExtraReads{
		Variables: []Variable{
			{Address: p.bias + p.server.query, Follow: MaxQuery},
			{Address: p.bias + p.server.wait, Follow: 4},
		},
		Head: p.bias + p.server.list,
		OnStack: append([]Deref{
			{Offset: 0, Length: reach}, l.lock.relationRead(), l.lock.tupleRead(),
		}, estate[1:]...), // the first is part of OnStack[0], which is longer for other callbacks
		Elsewhere: reach,
	}
	if p.server.activities != 0 {
		t.Variables = append(t.Variables, Variable{Address: p.bias + p.server.activities})
	}
	if p.server.entry != 0 {
		t.Counters = append(t.Counters, Counter{Address: p.bias + p.server.entry, Offset: l.changes})
	}
	if at := p.plpgsqlAt.Load(); at != 0 {
		t.Known = append(t.Known, Known{at, estate})
	}
	if at := p.spiAt.Load(); at != 0 {
		t.Known = append(t.Known, Known{at, []Deref{{Offset: l.spiText, Length: maxStatement}}})
	}
	return t
}

// Read reads the levels, the query and the wait event of a snapshot that was taken with the process's extra reads.
func (p *Process) Read(in *Input) Result {
	r := reader{Process: p, in: in}
	var out Result
	out.Query, out.QueryCut = r.query()
	if in.Sampled {
		out.Levels, out.Missing = r.sampled()
		return out
	}
	out.Wait = r.wait()
	out.Levels, out.Missing = r.levels()
	return out
}

// reader is the state of one Read.
type reader struct {
	*Process

	in       *Input
	encoding int  // of the database, or encodingUnknown; 0: not read yet
	lacking  bool // a read of live memory failed
}

// live reads the current memory of the process.
func (r *reader) live(addr uint64, p []byte) int {
	n := r.in.Live(addr, p)
	r.lacking = r.lacking || n < len(p)
	return n
}

// word reads a pointer in the copy.
func (r *reader) word(addr uint64) (uint64, bool) {
	var b [pointerSize]byte
	if addr == 0 || r.in.Frozen(addr, b[:]) < len(b) {
		return 0, false
	}
	return binary.NativeEndian.Uint64(b[:]), true
}

// number reads a 32-bit integer in the copy.
func (r *reader) number(addr uint64) (int32, bool) {
	var b [numberSize]byte
	if addr == 0 || r.in.Frozen(addr, b[:]) < len(b) {
		return 0, false
	}
	return int32(binary.NativeEndian.Uint32(b[:])), true
}

// flag reads a C bool in the copy.
func (r *reader) flag(addr uint64) (value, ok bool) {
	var b [1]byte
	if addr == 0 || r.in.Frozen(addr, b[:]) < 1 || b[0] > 1 {
		return false, false
	}
	return b == [1]byte{1}, true
}

// liveWord reads a pointer in the current memory.
func (r *reader) liveWord(addr uint64) (uint64, bool) {
	var b [pointerSize]byte
	if addr == 0 || r.live(addr, b[:]) < len(b) {
		return 0, false
	}
	return binary.NativeEndian.Uint64(b[:]), true
}

// same reports whether a word in the current memory equals the copy.
func (r *reader) same(addr uint64) bool {
	a, ok1 := r.word(addr)
	b, ok2 := r.liveWord(addr)
	return ok1 && ok2 && a == b
}

// query reads debug_query_string, unless the session has track_activities off. pg_stat_activity has no query then
// either.
func (r *reader) query() (string, bool) {
	if at := r.server.activities; at != 0 {
		if on, ok := r.flag(r.bias + at); !on || !ok {
			return "", false
		}
	}
	p, ok := r.word(r.bias + r.server.query)
	if !ok || p == 0 {
		return "", false
	}
	return r.text(r.in.Frozen, p, MaxQuery)
}

// Outer is the value of Result.Missing if the list of levels is longer than a capture copies.
const Outer = "those of the outer calls, because only the innermost 128 levels are copied"

// levels follows error_context_stack. Each node must be in a frame of Input.Frames, further out than the previous node. missing is
// Outer, or empty.
func (r *reader) levels() (out []Placed, missing string) {
	node, ok := r.word(r.bias + r.server.list)
	for i := range maxLevels {
		if !ok || node == 0 {
			break
		}
		if i == snapshot.MaxNodes {
			missing = Outer
		}
		frame, found := r.frameOf(node)
		if !found {
			break
		}
		callback, ok1 := r.word(node + uint64(r.layout.callback))
		arg, ok2 := r.word(node + uint64(r.layout.argument))
		if ok1 && ok2 {
			level, ok := r.level(frame, callback, arg)
			if ok {
				out = append(out, Placed{Frame: frame.Index, Level: level})
			}
			if _, onStack := r.frameOf(arg); !onStack {
				level.Kind = ""
			}
			r.note(callback, level.Kind)
		}
		next, ok3 := r.word(node + uint64(r.layout.previous))
		if !ok3 || next <= node {
			break
		}
		node = next
	}
	return out, missing
}

// note remembers the address of a PL/pgSQL or SPI callback, which most levels have. If the callback at a remembered
// address gives a level of another kind, note forgets the address.
func (p *Process) note(callback uint64, kind backtrace.Kind) {
	for _, known := range []struct {
		kind backtrace.Kind
		at   *atomic.Uint64
	}{{backtrace.PLpgSQL, &p.plpgsqlAt}, {backtrace.SPI, &p.spiAt}} {
		if kind == known.kind {
			known.at.Store(callback)
		} else {
			known.at.CompareAndSwap(callback, 0)
		}
	}
}

// frameOf finds the frame of Input.Frames that contains an address of the stack; false: no frame does, or the address is not
// aligned.
func (r *reader) frameOf(addr uint64) (*Frame, bool) {
	if addr%8 != 0 {
		return nil, false
	}
	for i := range r.in.Frames {
		if f := &r.in.Frames[i]; addr >= f.Start && addr < f.End {
			return f, true
		}
	}
	return nil, false
}

// level returns the level of one node of the list, which depends on the node's callback; false: it cannot be read.
func (r *reader) level(frame *Frame, callback, arg uint64) (backtrace.Level, bool) {
	code := r.in.Code(callback)
	if c := r.identify(callback, &code); c != nil && (c.module == server || c.module == frame.Module) {
		return c.read(r, arg)
	}
	return backtrace.Level{}, false
}
