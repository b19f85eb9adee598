package levels

import (
	"encoding/binary"
	"slices"
	"sort"
)

// Addresses of the fake process. Its stack takes up stackLow to stackHigh, in frames of frameSize bytes.
const (
	bias      = 0x55_0000_0000
	listAt    = bias + 0x1000
	queryAt   = bias + 0x1008
	waitAt    = bias + 0x1010
	heapAt    = 0x66_0000_0000
	stackLow  = 0x7ffe_0000_0000
	stackHigh = stackLow + 64*frameSize
	frameSize = 0x400
	plpgsqlAt = 0x77_0000_0000    // its code, with plpgsql_exec_error_callback at the beginning
	execSQLAt = plpgsqlAt + 0x400 // plpgsql_execsql_error_callback
	rodataAt  = plpgsqlAt + 0x10000
	spiAt     = bias + 0x2000
	sqlAt     = bias + 0x2100
	inlineAt  = bias + 0x2200
	copyAt    = bias + 0x2300
	vacuumAt  = bias + 0x2400
	workerAt  = bias + 0x2700 // parallel_vacuum_error_callback
	lockAt    = bias + 0x2800
	formatsAt = bias + 0x8000
	perlAt    = 0x78_0000_0000 // its code, with plperl_exec_callback at the beginning
	perlDoAt  = perlAt + 0x100
	pythonAt  = 0x79_0000_0000
	pyDoAt    = pythonAt + 0x100
	encodeAt  = bias + 0x2500
)

// fake is a process in memory: bytes by address.
type fake struct {
	layout *layout
	pieces map[uint64][]byte
	heap   uint64 // next free byte
	stack  uint64 // frame in which the next node is put
	last   uint64 // address of the pointer to the next node

	stripped bool
	module   string // of the frames, if not PL/pgSQL's
}

func newFake(major int) *fake {
	f := &fake{
		layout: layoutOf(major), pieces: make(map[uint64][]byte), heap: heapAt, stack: stackLow + frameSize/2, last: listAt,
	}
	f.pieces[stackLow] = make([]byte, stackHigh-stackLow)
	f.pieces[heapAt] = make([]byte, 64<<10)
	f.pieces[bias] = make([]byte, 0x10000)
	f.pieces[plpgsqlAt] = make([]byte, 0x20000)
	f.pieces[perlAt] = make([]byte, 0x1000)
	f.pieces[pythonAt] = make([]byte, 0x1000)
	f.assemble(formatsAt, map[uint64]string{
		spiAt: "_SPI_error_callback", sqlAt: "sql_exec_error_callback", inlineAt: "sql_inline_error_callback",
		vacuumAt: "vacuum_error_callback", workerAt: "parallel_vacuum_error_callback", lockAt: "XactLockTableWaitErrorCb",
	})
	f.assemble(perlAt+0x800, map[uint64]string{perlAt: "plperl_exec_callback", perlDoAt: "plperl_inline_callback"})
	f.assemble(pythonAt+0x800, map[uint64]string{
		pythonAt: "plpython_error_callback", pyDoAt: "plpython_inline_error_callback",
	})
	f.assemble(rodataAt+0x800, map[uint64]string{execSQLAt: "plpgsql_execsql_error_callback"})
	f.put32(plpgsqlAt+0x10, uint32(f.layout.errStmt))
	f.put32(plpgsqlAt+0x20, uint32(f.layout.errText))
	// mov DatabaseEncoding(%rip),%rax; mov 8(%rax),%eax; ret
	f.put(encodeAt, []byte("\x48\x8b\x05\xf9\x00\x00\x00\x8b\x40\x08\xc3"))
	entry := f.alloc(make([]byte, 16))
	f.put64(encodeAt+0x100, entry)
	f.put32(entry+8, encodingUTF8)
	return f
}

// assemble makes code for callbacks: a lea instruction for each string that identifies the callback. It puts the
// strings at the address formats. vacuum_error_callback also has two strings of parallel_vacuum_error_callback, as in
// PostgreSQL.
func (f *fake) assemble(formats uint64, names map[uint64]string) {
	for at, name := range names {
		for _, c := range callbacks {
			used := c.formats
			if c.name == "vacuum_error_callback" {
				used = append(slices.Clone(used), `while vacuuming index "%s" of relation "%s.%s"`,
					`while cleaning up index "%s" of relation "%s.%s"`)
			}
			if c.name != name {
				continue
			}
			for _, format := range used {
				f.put(at, []byte{0x48, 0x8d, 0x3d})
				f.put32(at+3, uint32(formats-(at+7)))
				at += 7
				f.put(formats, append([]byte(format), 0))
				formats += uint64(len(format) + 1)
			}
		}
	}
}

func (f *fake) server() *Server {
	waits, err := waitEvents(18)
	if err != nil {
		panic(err)
	}
	return &Server{
		Major: 18, layout: f.layout, waits: waits, list: listAt - bias, query: queryAt - bias, wait: waitAt - bias,
		getEncoding: encodeAt - bias,
	}
}

// read is the memory as both Memory functions see it.
func (f *fake) read(addr uint64, p []byte) int {
	for start, data := range f.pieces {
		if addr >= start && addr < start+uint64(len(data)) {
			return copy(p, data[addr-start:])
		}
	}
	return 0
}

func (f *fake) put(addr uint64, p []byte) {
	for start, data := range f.pieces {
		if addr >= start && addr+uint64(len(p)) <= start+uint64(len(data)) {
			copy(data[addr-start:], p)
			return
		}
	}
	panic("no such memory")
}

func (f *fake) put64(addr, v uint64) { f.put(addr, binary.NativeEndian.AppendUint64(nil, v)) }
func (f *fake) put32(addr uint64, v uint32) {
	f.put(addr, binary.NativeEndian.AppendUint32(nil, v))
}

// alloc puts bytes on the heap.
func (f *fake) alloc(p []byte) uint64 {
	at := f.heap
	f.put(at, p)
	f.heap += uint64(len(p)+7) &^ 7
	return at
}

func (f *fake) text(s string) uint64 { return f.alloc(append([]byte(s), 0)) }

// node links a node of the list into the next frame; its argument is on the same frame if arg is 0.
func (f *fake) node(callback, arg uint64) (argument uint64) {
	at := f.stack
	f.stack += frameSize
	if arg == 0 {
		arg = at + 32
	}
	f.put64(f.last, at)
	f.put64(at+8, callback)
	f.put64(at+16, arg)
	f.last = at
	return arg
}

// plpgsql adds a PL/pgSQL level. kind < 0 means no statement.
func (f *fake) plpgsql(signature string, oid uint32, kind, line int) (estate, stmt uint64) {
	estate = f.node(plpgsqlAt, 0)
	function := f.alloc(make([]byte, 64))
	f.put64(function+uint64(f.layout.signature), f.text(signature))
	f.put32(function+uint64(f.layout.oid), oid)
	f.put64(estate, function)
	if kind >= 0 {
		stmt = f.alloc(make([]byte, 64))
		f.put32(stmt, uint32(kind))
		f.put32(stmt+4, uint32(line))
		f.put64(estate+uint64(f.layout.errStmt), stmt)
	}
	return estate, stmt
}

func (f *fake) input() *Input {
	in := &Input{Frozen: f.read, Live: f.read, Code: f.code}
	module := plpgsqlModule
	if f.module != "" {
		module = f.module
	}
	for at := uint64(stackLow); at < stackHigh; at += frameSize {
		in.Frames = append(in.Frames, Frame{
			Index: int(at-stackLow) / frameSize, Start: at, End: at + frameSize, Module: module,
		})
	}
	return in
}

func (f *fake) code(addr uint64) Code {
	names := map[uint64]string{
		spiAt: "_SPI_error_callback", sqlAt: "sql_exec_error_callback", inlineAt: "sql_inline_error_callback",
		copyAt: "CopyFromErrorCallback", vacuumAt: "vacuum_error_callback", workerAt: "parallel_vacuum_error_callback",
		lockAt: "XactLockTableWaitErrorCb", perlAt: "plperl_exec_callback", perlDoAt: "plperl_inline_callback",
		pythonAt: "plpython_error_callback", pyDoAt: "plpython_inline_error_callback",
		execSQLAt: "plpgsql_execsql_error_callback",
	}
	name := names[addr]
	if f.stripped && addr != copyAt {
		name = ""
	}
	switch {
	case addr >= perlAt && addr < perlAt+0x1000:
		return Code{Module: plperlModule, Function: name, Size: 64}
	case addr >= pythonAt && addr < pythonAt+0x1000:
		return Code{Module: pythonModule, Function: name, Size: 64}
	case addr == plpgsqlAt && !f.stripped:
		return Code{Module: plpgsqlModule, Function: "plpgsql_exec_error_callback", Size: 64}
	case addr == plpgsqlAt:
		return Code{Module: plpgsqlModule, Size: 64}
	case addr == execSQLAt:
		return Code{Module: plpgsqlModule, Function: name, Size: 64}
	case addr > plpgsqlAt && addr < plpgsqlAt+0x20000:
		return Code{Module: plpgsqlModule}
	}
	return Code{Module: "postgres", Server: true, Function: name, Size: 64}
}

// lines reads the process and returns the texts of its levels.
func (f *fake) lines() []string {
	result := f.server().Process(bias).Read(f.input())
	sort.SliceStable(result.Levels, func(i, j int) bool { return result.Levels[i].Frame < result.Levels[j].Frame })
	var out []string
	for _, l := range result.Levels {
		out = append(out, l.Level.Text)
	}
	return out
}
