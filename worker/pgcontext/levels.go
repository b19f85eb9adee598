// Package pgcontext reads what a PostgreSQL server process says of itself: the list error_context_stack (the functions
// in PL/pgSQL, SQL, PL/Perl and PL/Python it is in, at which line and statement, a COPY's line, a VACUUM's block, the
// row that it waits for), the text of the statement it was sent and the event it waits for.
//
// Everything that may change while the process runs comes from a copy made in one stop together with the stack (see
// Process.ExtraReads); only what lives as long as a function or a relation that is in use, its name, is read
// afterwards, and compared with the copy. The layouts of the structures are those of PostgreSQL 14 to 18 on 64-bit
// machines; each is checked as far as it can be, and what does not pass, or is of another version, is left out
// without a word.
//
// The package must not know how a process is stopped and copied, of ELF files or of how a level is printed.
package pgcontext

import (
	"encoding/binary"
	"sync/atomic"

	"pg_stat_backtrace/worker/trace"
)

// Memory copies memory of the process from addr into p and returns how many bytes it got.
type Memory func(addr uint64, p []byte) int

// Code says what lies at a code address.
type Code struct {
	// Module is the base name of the file, Server set if the address lies in code of the server's own program.
	Module string
	Server bool
	// Function is the name of the function that begins at the address, empty where no symbol says.
	Function string
	// Size is the length of the function in bytes, 0 if unknown.
	Size int
	// Image is the build-id of the file and Offset the address in it, which are the same in every process that has that
	// file; empty if unknown.
	Image  string
	Offset uint64
}

// Frame is a live frame of the stack.
type Frame struct {
	// Index is the caller's number of the frame.
	Index int
	// Start and End are the addresses that the frame takes up: from the callee's canonical frame address to its own.
	Start, End uint64
	// Module is the base name of the file that the frame's code lies in.
	Module string
}

// Input is one snapshot of a process.
type Input struct {
	// Frozen is the memory that was copied in the stop: the stack and what the extra reads led to.
	Frozen Memory
	// Live is the memory of the process as it is now.
	Live Memory
	// Code names code addresses.
	Code func(addr uint64) Code
	// Frames are the stack's, innermost first.
	Frames []Frame
}

// Result is what a snapshot says; what is not known is empty.
type Result struct {
	// Levels are innermost first.
	Levels []Placed
	// Query is the text of the statement, at most MaxQuery bytes of it; QueryCut is set if there was more.
	Query    string
	QueryCut bool
	Wait     trace.Wait
}

// Placed is a level and the number of the frame that it belongs to.
type Placed struct {
	Frame int
	Level trace.Level
}

// MaxQuery is how many bytes of a query's text are read.
const MaxQuery = 1024

const (
	// maxLevels bounds the list; of fewer nodes there is a copy.
	maxLevels = 256
	// reach is how much is copied from where a pointer of a level's argument leads.
	reach = 512
)

// Process is a server process of a known version.
type Process struct {
	server *Server
	layout *layout
	bias   uint64
	// plpgsqlAt and spiAt are where plpgsql_exec_error_callback and _SPI_error_callback lie; 0 until a level was
	// theirs.
	plpgsqlAt, spiAt atomic.Uint64
}

// Process returns what is needed of a process in which the server's program has that load bias.
func (s *Server) Process(bias uint64) *Process {
	return &Process{server: s, layout: s.layout, bias: bias}
}

// ExtraReads is what is to be copied in the stop: variables and what they point at; and for each node of the list whose
// head is a variable, if its argument lies on the stack, what pointers behind it point at, else the argument's target.
// Which pointers is known by a node's callback, or else those for all of them.
type ExtraReads struct {
	Variables []Variable
	Head      uint64
	OnStack   []Deref
	Known     []Known
	Elsewhere int
}

// Known is what the arguments of a known callback lead to.
type Known struct {
	Callback uint64
	OnStack  []Deref
}

// Variable is a pointer at an address, Follow the bytes to copy from where it points.
type Variable struct {
	Address uint64
	Follow  int
}

// Deref is a pointer at an offset from an argument, Length the bytes to copy from where it points.
type Deref struct {
	Offset, Length int
}

// ExtraReads returns what is to be copied of the process.
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
			{Offset: 0, Length: reach}, {Offset: lockRelation, Length: relationReach}, {Offset: lockTuple, Length: tupleReach},
		}, estate[1:]...), // of the first, more is wanted for others
		Elsewhere: reach,
	}
	if p.server.activities != 0 {
		t.Variables = append(t.Variables, Variable{Address: p.bias + p.server.activities})
	}
	if at := p.plpgsqlAt.Load(); at != 0 {
		t.Known = append(t.Known, Known{at, estate})
	}
	if at := p.spiAt.Load(); at != 0 {
		t.Known = append(t.Known, Known{at, []Deref{{Offset: 0, Length: maxStatement}}})
	}
	return t
}

// Read reads the levels, the query and the wait event of a snapshot that was taken with the process's extra reads.
func (p *Process) Read(in *Input) Result {
	r := reader{Process: p, in: in}
	var out Result
	out.Wait = r.wait()
	out.Query, out.QueryCut = r.query()
	out.Levels = r.levels()
	return out
}

// reader is the work of one Read.
type reader struct {
	*Process

	in       *Input
	encoding int  // the database's, or encodingUnknown; 0: nobody has looked
	lacking  bool // memory that live was to read was not readable
}

// live reads memory of the process as it is now.
func (r *reader) live(addr uint64, p []byte) int {
	n := r.in.Live(addr, p)
	r.lacking = r.lacking || n < len(p)
	return n
}

// word reads a pointer of the copy.
func (r *reader) word(addr uint64) (uint64, bool) {
	var b [8]byte
	if addr == 0 || r.in.Frozen(addr, b[:]) < len(b) {
		return 0, false
	}
	return binary.NativeEndian.Uint64(b[:]), true
}

// number reads a 32-bit integer of the copy.
func (r *reader) number(addr uint64) (int32, bool) {
	var b [4]byte
	if addr == 0 || r.in.Frozen(addr, b[:]) < len(b) {
		return 0, false
	}
	return int32(binary.NativeEndian.Uint32(b[:])), true
}

// flag reads a C bool of the copy.
func (r *reader) flag(addr uint64) (value, ok bool) {
	var b [1]byte
	if addr == 0 || r.in.Frozen(addr, b[:]) < 1 || b[0] > 1 {
		return false, false
	}
	return b == [1]byte{1}, true
}

// liveWord reads a pointer of the process as it is now.
func (r *reader) liveWord(addr uint64) (uint64, bool) {
	var b [8]byte
	if addr == 0 || r.live(addr, b[:]) < len(b) {
		return 0, false
	}
	return binary.NativeEndian.Uint64(b[:]), true
}

// same reports whether a word still is what the copy has.
func (r *reader) same(addr uint64) bool {
	a, ok1 := r.word(addr)
	b, ok2 := r.liveWord(addr)
	return ok1 && ok2 && a == b
}

// query reads debug_query_string, unless the session has track_activities off: then pg_stat_activity has none either.
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

// levels follows error_context_stack. Each node lies in a live frame, and further out than the one before.
func (r *reader) levels() []Placed {
	node, ok := r.word(r.bias + r.server.list)
	var out []Placed
	for range maxLevels {
		if !ok || node == 0 {
			break
		}
		frame, found := r.frameOf(node)
		if !found {
			break
		}
		callback, ok1 := r.word(node + 8)
		arg, ok2 := r.word(node + 16)
		if ok1 && ok2 {
			level, ok := r.level(frame, callback, arg)
			if ok {
				out = append(out, Placed{Frame: frame.Index, Level: level})
			}
			r.note(callback, level.Kind)
		}
		next, ok3 := r.word(node)
		if !ok3 || next <= node {
			break
		}
		node = next
	}
	return out
}

// note remembers where the callbacks of most levels lie, as long as they are what they turned out to be.
func (p *Process) note(callback uint64, kind trace.Kind) {
	for _, known := range []struct {
		kind trace.Kind
		at   *atomic.Uint64
	}{{trace.PLpgSQL, &p.plpgsqlAt}, {trace.SPI, &p.spiAt}} {
		if kind == known.kind {
			known.at.Store(callback)
		} else {
			known.at.CompareAndSwap(callback, 0)
		}
	}
}

// frameOf finds the frame that holds an address of the stack.
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

// level reads one node by the function that is to print it.
func (r *reader) level(frame *Frame, callback, arg uint64) (trace.Level, bool) {
	code := r.in.Code(callback)
	if code.Module == plpgsqlModule && frame.Module == plpgsqlModule {
		return r.plpgsql(callback, &code, arg)
	}
	if c := r.identify(callback, &code); c != nil && (c.module == server || c.module == frame.Module) {
		return c.read(r, arg)
	}
	return trace.Level{}, false
}
