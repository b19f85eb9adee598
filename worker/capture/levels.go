package capture

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/levels"
)

// programs caches the recognition of each program that was examined.
type programs struct {
	mu       sync.Mutex
	byModule map[*symbolize.Module]*symbolize.Lazy[recognition]
}

// recognition is the result of examining a program. server is nil if the program is not a PostgreSQL server of a known
// version. If it is a server of an unknown version, the field unknown has the reason.
type recognition struct {
	server  *levels.Server
	unknown string
}

// serverProcess is a process whose program was examined. process is nil if the program is not a PostgreSQL server.
type serverProcess struct {
	exe     string
	process *levels.Process
	unknown string // reason if the version of a PostgreSQL server is unknown
	late    bool   // the program was not read in time, so nothing else is known
	module  *symbolize.Module
	mapping process.Mapping // a mapping of the program; levels are read only if the snapshot has this mapping
	bias    uint64          // load bias of the program

	variables []snapshot.Variable // variables that the present capture copies
	last      *pointers           // shared by all captures of the process; nil if process is nil
}

// pointers has the values of the copied variables in the last capture. Each value is an address, or 0 if the memory at
// this address was not copied. Most of these pointers stay the same as long as the process lives.
type pointers [8]atomic.Uint64

func newPrograms() *programs {
	return &programs{byModule: make(map[*symbolize.Module]*symbolize.Lazy[recognition])}
}

// serverProcess returns the facts about the server program of a process; empty if the process cannot be read. The first
// call for a process reads its mappings. The parameter same is set if the caller has just compared the mappings, so
// that the process still runs the same program.
func (c *Capturer) serverProcess(key naming.ProcessKey, same bool) serverProcess {
	if key.StartTime == 0 {
		return serverProcess{}
	}
	known, ok := c.serverFact.Of(c.processes, key)
	if ok && same {
		return known
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", key.PID))
	if err != nil {
		return serverProcess{}
	}
	if ok && known.exe == exe {
		return known
	}
	var read atomic.Pointer[[]process.Mapping] // atomic, because the goroutine may write to it after the timeout
	if !process.WithTimeout(key.PID, func() {
		process.ProbeReadable(key.PID)
		if maps, err := process.Maps(key.PID); err == nil {
			read.Store(&maps)
		}
	}, func() {}) || read.Load() == nil {
		return serverProcess{} // the capture will report the error
	}
	maps := *read.Load()
	space := c.processes.Open(key.PID, key.StartTime, maps)
	space.Files = &symbolize.Deadline{After: c.linesWait} // a short wait, because a stack without levels is better than a late one
	defer space.Files.Stop()
	if known = c.lookAtProgram(key.PID, space, exe); space.Unread != "" {
		return serverProcess{late: true}
	}
	c.serverFact.Keep(c.processes, key, known)
	return known
}

// lookAtProgram finds the program of a process among the mappings, and examines whether it is a PostgreSQL server.
func (c *Capturer) lookAtProgram(pid int, space *naming.Space, exe string) serverProcess {
	out := serverProcess{exe: exe}
	program, ok := cluster.FindProgram(pid, space, exe)
	if !ok {
		return out
	}
	found := c.programs.of(program.Module, space)
	out.unknown = found.unknown
	if server := found.server; server != nil {
		out.bias, out.process = program.Bias, server.Process(program.Bias)
		out.module, out.mapping, out.last = program.Module, program.Mapping, new(pointers)
	}
	return out
}

// of returns the recognition of a program. It is empty, and space.Unread is set, if the program was not read in time.
func (s *programs) of(m *symbolize.Module, space *naming.Space) recognition {
	s.mu.Lock()
	p := s.byModule[m]
	if p == nil {
		if len(s.byModule) >= symbolize.MaxImages {
			clear(s.byModule)
		}
		p = &symbolize.Lazy[recognition]{}
		s.byModule[m] = p
	}
	s.mu.Unlock()
	found, ok := p.Get(space.Files, m.Warn, func() recognition { return recognise(m) })
	if !ok {
		space.Unread = m.Name
	}
	return found
}

// recognise examines whether a program is a PostgreSQL server of a known version.
func recognise(m *symbolize.Module) recognition {
	variables, err := m.Image.Defined(levels.Variables()...)
	if err != nil || len(variables) == 0 {
		return recognition{}
	}
	symbol := func(name string) uint64 { return variables[name] }
	for _, code := range []bool{false, true} { // code last: a linker may put constants beside it
		var server *levels.Server
		if server, err = levels.NewServer(symbol, contents(m.Image, code)); err == nil {
			return recognition{server: server}
		}
	}
	var unknown *levels.UnknownVersionError
	if errors.As(err, &unknown) {
		return recognition{unknown: unknown.Reason}
	}
	return recognition{}
}

// contents returns a reader of the content of an image's segments, one after the other: of the executable segments if
// code is set, otherwise of the other segments.
func contents(image *elfimage.Image, code bool) io.Reader {
	var readers []io.Reader
	for _, s := range image.Segments() {
		if r := image.Content(s); r != nil && (s.Flags&elf.PF_X != 0) == code {
			readers = append(readers, r)
		}
	}
	return io.MultiReader(readers...)
}

// addTo adds the server's variables, and the memory to which they point, to the memory that a capture copies.
func (p *serverProcess) addTo(t *snapshot.ExtraReads) {
	if p.process == nil {
		return
	}
	wanted := p.process.ExtraReads()
	t.Head, t.Elsewhere = wanted.Head, wanted.Elsewhere
	for i, v := range wanted.Variables {
		expected := uint64(0)
		if i < len(p.last) {
			expected = p.last[i].Load()
		}
		t.Variables = append(t.Variables, snapshot.Variable{Address: v.Address, Follow: v.Follow, Expected: expected})
	}
	p.variables = t.Variables
	t.OnStack = derefs(wanted.OnStack)
	for _, c := range wanted.Counters {
		t.Counters = append(t.Counters, snapshot.Counter(c))
	}
	for _, k := range wanted.Known {
		t.Kinds = append(t.Kinds, snapshot.Kind{Word: k.Callback, OnStack: derefs(k.OnStack)})
	}
}

func derefs(wanted []levels.Deref) []snapshot.Deref {
	out := make([]snapshot.Deref, len(wanted))
	for i, d := range wanted {
		out[i] = snapshot.Deref(d)
	}
	return out
}

// read adds the data from PostgreSQL's memory to a trace: wait event, query and levels. The parameter walked has the
// frames of the first thread. t.Threads[0] has the same frames with names.
func (p *serverProcess) read(t *backtrace.Trace, snap *snapshot.Snapshot, walked []unwind.Frame, space *naming.Space) {
	i := -1
	t.Unrecognised = p.unknown
	if p.process != nil {
		i = space.Mapping(p.mapping.Start)
	}
	if i < 0 || space.Maps[i] != p.mapping || len(walked) == 0 {
		return
	}
	th := &t.Threads[0]
	if snap.Moved && slices.ContainsFunc(th.Frames, func(f backtrace.Frame) bool { return f.Module == levels.Library }) {
		t.LevelsMissing = levels.Moved
	}
	if len(snap.Found) == 0 {
		return
	}
	place := physical(walked, th.Frames)
	live := process.NewMemory(snap.PID)
	in := levels.Input{
		Frozen: frozen(&snap.Threads[0].Stack, snap.Found),
		Live: func(addr uint64, b []byte) int {
			n, _ := live.Read(addr, b)
			return n
		},
		Code:    func(addr uint64) levels.Code { return p.describe(space, addr) },
		Frames:  spans(snap.Threads[0].Stack.Start, walked, place, th.Frames),
		Sampled: snap.Engine != snapshot.EngineStop && snap.Threads[0].Syscall == nil,
	}
	p.remember(in.Frozen)
	result := p.process.Read(&in)
	for _, l := range result.Levels {
		f := &th.Frames[l.Frame]
		f.Levels = append(f.Levels, l.Level)
	}
	t.Wait, t.Query, t.QueryCut, t.LevelsMissing = result.Wait, result.Query, result.QueryCut, result.Missing
	t.QueryFrame = queryFrame(th.Frames)
}

// remember stores the values of the copied variables for the next capture.
func (p *serverProcess) remember(memory levels.Memory) {
	var word [8]byte
	copied := func(addr uint64) bool { return memory(addr, word[:1]) == 1 }
	for i := range p.variables[:min(len(p.variables), len(p.last))] {
		v, held := &p.variables[i], uint64(0)
		if v.Follow > 0 && memory(v.Address, word[:]) == len(word) {
			held = binary.NativeEndian.Uint64(word[:])
		}
		if held != 0 && (!copied(held) || !copied(held+uint64(v.Follow)-1)) {
			held = 0 // copying the memory together with the stack would fail next time, too
		}
		p.last[i].Store(held)
	}
}

// describe returns the module of an address and, for code, the function and its size. The function is set only if it
// begins at the address.
func (p *serverProcess) describe(space *naming.Space, addr uint64) levels.Code {
	m, f, ok := space.Lookup(addr)
	if !ok {
		if i := space.Mapping(addr); i >= 0 {
			return levels.Code{Module: symbolize.ModuleName(space.Maps[i].Path)}
		}
		return levels.Code{}
	}
	if f.Module == nil {
		return levels.Code{Module: symbolize.ModuleName(m.Path), Server: p.module == nil}
	}
	code := levels.Code{Module: f.Name, Server: f.Module == p.module}
	at := addr - f.Bias
	code.Image, code.Offset = f.Module.Image.BuildID(), at
	if name, start, ok := f.Module.FunctionAt(at, space.Files); ok && start == at {
		code.Function = name
	}
	if t, _ := f.Module.Table(space.Files); t != nil {
		if fde, err := t.Find(at); err == nil && fde.Start == at {
			code.Size = int(fde.End - fde.Start)
		}
	}
	return code
}

// frozen returns a reader of the memory that a snapshot has copied: a stack and other blocks. The reader returns the
// number of bytes that it has copied.
func frozen(stack *snapshot.Stack, blocks []snapshot.Stack) levels.Memory {
	return func(addr uint64, b []byte) int {
		best := 0
		look := func(s *snapshot.Stack) {
			if off := addr - s.Start; addr >= s.Start && off < uint64(len(s.Data)) {
				best = max(best, copy(b, s.Data[off:]))
			}
		}
		look(stack)
		for i := range blocks {
			if best == len(b) {
				break
			}
			look(&blocks[i])
		}
		return best
	}
}

// physical returns, for each frame of a walk, the index of the same frame in lines, the frames of the trace. In lines,
// the calls that were inlined into a frame come before the frame. If the limit on frames has cut a frame from the
// trace, its index is len(lines).
func physical(walked []unwind.Frame, lines []backtrace.Frame) []int {
	place := make([]int, len(walked))
	at := 0
	for i := range walked {
		for at < len(lines) && lines[at].Inlined {
			at++
		}
		place[i] = min(at, len(lines))
		at++
	}
	return place
}

// spans returns the part of the stack that belongs to each frame of the trace. The first part begins at the address
// low. spans leaves out frames whose CFA is not above the frame before, as after a switch of stacks.
func spans(low uint64, walked []unwind.Frame, place []int, lines []backtrace.Frame) []levels.Frame {
	out := make([]levels.Frame, 0, len(walked))
	for i := range walked {
		if place[i] == len(lines) {
			break // the trace lacks this frame and all frames after it
		}
		if end := walked[i].CFA; end > low {
			line := &lines[place[i]]
			out = append(out, levels.Frame{Index: place[i], Start: low, End: end, Module: line.Module, Function: line.Function})
			low = end
		}
	}
	return out
}

// queryFrame returns the index of the frame that shows the query's text. This is the function that handles the client's
// message or, if there is none, the main loop, or the outermost frame.
func queryFrame(frames []backtrace.Frame) int {
	found := len(frames) - 1
	for i := len(frames) - 1; i >= 0; i-- {
		switch frames[i].Function {
		case "PostgresMain", "ParallelWorkerMain":
			found = i
		case "exec_simple_query", "exec_parse_message", "exec_bind_message", "exec_execute_message",
			"exec_describe_statement_message", "exec_replication_command", "ParallelQueryMain":
			return i
		}
	}
	return found
}
