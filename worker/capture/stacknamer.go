package capture

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/levels"
)

// StackNamer unwinds and names stacks that BPF programs have copied: the registers and the stack memory of a thread at
// one moment. Only one goroutine may use it at a time.
type StackNamer struct {
	capturer *Capturer
	options  StackNamerOptions
	key      []byte
	last     lastWalk
	used     int // estimated bytes of the remembered stacks, if StackNamerOptions.MaxBytes limits them
	short    bool
}

// StackNamerOptions configures a StackNamer. The zero value is the default.
type StackNamerOptions struct {
	// MaxFrames bounds a stack's frames, inlined calls included; 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// MaxStacks is the number of different stacks that each StackSpace remembers. When there are more, it forgets all
	// of them. 0 means 65,536.
	MaxStacks int
	// MaxBytes bounds the estimated memory of all remembered stacks; 0: no limit. If it is set, MaxStacks has no
	// effect. Once half of MaxBytes is used, new stacks have the address at which their innermost function begins,
	// instead of the exact address: see Shortened. Once all is used, the result for a new stack is TooManyStacks.
	MaxBytes int
	// CompleteLater makes Name return without source lines and derived names that are not known yet. Complete adds
	// them. If CompleteLater is not set, Name waits for them, up to Config.LinesWait.
	CompleteLater bool
	// Shared, if not nil, keeps one copy of equal stacks of all StackSpaces. If it is nil, each StackSpace keeps its
	// own stacks. It must be nil with CompleteLater.
	Shared *SharedStacks
}

// TooManyStacks is the result for a stack for which there is no room: see MaxBytes. It has no frames.
//
//nolint:gochecknoglobals // a constant
var TooManyStacks = &backtrace.Thread{Stop: "too many stacks"}

// lastWalk describes the last walk of a StackNamer.
type lastWalk struct {
	frames  []unwind.Frame
	unknown bool // no equal walk was named before in the same StackSpace
	// shortened is set if the innermost address is replaced by the start of its function.
	shortened bool
	// used are the mappings in which frames lie. trusted means that the walk would have ended at the same frame with
	// any other mappings. Both are set only if unknown is set and the space was made by ReadStackSpace.
	used    []naming.Usage
	trusted bool
}

// StackNamer returns a StackNamer that uses the Capturer's caches of images and processes.
func (c *Capturer) StackNamer(o StackNamerOptions) *StackNamer {
	if o.MaxStacks == 0 {
		o.MaxStacks = maxKnownStacks
	}
	return &StackNamer{capturer: c, options: o}
}

// Watch makes the Capturer read the code that sampled processes compile at run time as soon as it can, because a
// process may free such code before its stacks are named. The caller must call end.
func (n *StackNamer) Watch() (end func()) { return n.capturer.processes.WatchGenerated() }

// Name unwinds and names a stack of a process. Equal stacks of one StackSpace have the same result, and callers must
// not change it. complete is false if the walk ended before the end of the stack and before the limit of frames, or if
// a frame is guessed (see the function guessed). The process may then have changed its mappings since the space was
// made.
//
// The parameter memory has further memory of the process, copied at the same moment as the stack: variables of a
// PostgreSQL server, and the memory to which they point. If this memory shows functions of PL/pgSQL, they become levels
// of the frames. Name reads no other state of PostgreSQL.
func (n *StackNamer) Name(
	sp *StackSpace, th *snapshot.Thread, memory []snapshot.Stack,
) (named *backtrace.Thread, complete bool) {
	files := n.filesDeadline()
	defer files.Stop()
	named, complete = n.nameOne(sp, th, memory, &files)
	if n.last.unknown && sp.check != nil && !sp.stillMapped(&n.last) && sp.reread(n.capturer) {
		named, complete = n.nameOne(sp, th, memory, &files)
	}
	return named, complete
}

// NameSnapshots unwinds and names the first thread of each snapshot, with the snapshot's mappings. All snapshots share
// one deadline for reading files. Adjacent snapshots with the same mappings share a deadline for source lines and
// derived names.
func (n *StackNamer) NameSnapshots(list []*snapshot.Snapshot) []*backtrace.Thread {
	files := n.filesDeadline()
	defer files.Stop()
	named := make([]*backtrace.Thread, 0, len(list))
	for len(list) > 0 {
		first := list[0]
		sp := NewStackSpace(first.PID, first.MapsSnapshot.StartTime(), first.Maps)
		w := n.walker(sp, &files)
		for len(list) > 0 && list[0].MapsSnapshot == first.MapsSnapshot {
			th, _ := n.name(w, sp, &list[0].Threads[0], nil)
			named, list = append(named, th), list[1:]
		}
		w.close()
	}
	return named
}

// filesDeadline returns the deadline for reading files. The caller must stop it.
func (n *StackNamer) filesDeadline() symbolize.Deadline {
	return symbolize.Deadline{At: time.Now().Add(snapshot.DefaultDeadline), After: n.capturer.linesWait}
}

// walker returns a walker for a space. The caller must close it.
func (n *StackNamer) walker(sp *StackSpace, files *symbolize.Deadline) *walker {
	space := n.capturer.processes.Open(sp.pid, sp.startTime, sp.Maps)
	space.Files = files
	space.ReadLater(true)
	w := n.capturer.walker(space, Options{MaxFrames: n.options.MaxFrames})
	if n.options.CompleteLater {
		w.late = symbolize.Deadline{}
	}
	return w
}

func (n *StackNamer) nameOne(
	sp *StackSpace, th *snapshot.Thread, memory []snapshot.Stack, files *symbolize.Deadline,
) (named *backtrace.Thread, complete bool) {
	w := n.walker(sp, files)
	defer w.close()
	return n.name(w, sp, th, memory)
}

// name walks a stack, and names it unless sp remembers an equal stack.
func (n *StackNamer) name(
	w *walker, sp *StackSpace, th *snapshot.Thread, memory []snapshot.Stack,
) (named *backtrace.Thread, complete bool) {
	stop := w.walk(th, nil)
	complete = (stop.Whole() || stop.Reason == unwind.MaxFrames) && !slices.ContainsFunc(w.frames, guessed)
	n.key = appendWalk(append(n.key[:0], th.State, byte(stop.Reason)), w.frames)
	named, n.last.shortened = sp.known[string(n.key)], false
	if limit := n.options.MaxBytes; named == nil && (n.short || limit > 0 && n.used > limit/2) {
		if n.last.shortened = n.shorten(w); n.last.shortened {
			n.key = appendWalk(append(n.key[:0], th.State, byte(stop.Reason)), w.frames)
			named = sp.known[string(n.key)]
		}
		if named == nil && limit > 0 && n.used > limit {
			n.last.unknown, n.last.shortened = false, false
			return TooManyStacks, complete
		}
	}
	n.last.frames = append(n.last.frames[:0], w.frames...)
	if n.last.unknown = named == nil; n.last.unknown {
		t := w.describe(th, stop)
		named = n.keep(sp, &t, w.space)
		if sp.check != nil {
			n.last.used, n.last.trusted = w.space.UsedBy(w.frames, n.last.used[:0]), endsInsideFrames(stop.Reason)
		}
	}
	if len(memory) > 0 {
		named = n.addLevels(sp, w.space, named, th, memory)
	}
	return named, complete
}

// guessed reports whether the function of a frame called an address at which the mappings show no code. Such a frame is
// found by the return address (unwind.ByReturnAddress). The code at the called address may belong to a library that the
// process has loaded since its mappings were read.
func guessed(f unwind.Frame) bool { return f.Method == unwind.ByReturnAddress }

// Shorten makes Name shorten new stacks from now on, as if half of StackNamerOptions.MaxBytes were used.
func (n *StackNamer) Shorten() { n.short = true }

// Shortened reports whether the last result of Name has the start of its innermost function instead of the exact
// address: see StackNamerOptions.MaxBytes.
func (n *StackNamer) Shortened() bool { return n.last.shortened }

// shorten replaces the innermost address of the last walk by the start of its function. If the function is not known,
// it changes nothing and returns false.
func (n *StackNamer) shorten(w *walker) bool {
	if len(w.frames) == 0 {
		return false
	}
	named, _ := w.space.Name(w.frames[:1], unwind.DefaultMaxFrames, &w.late)
	f := &named[len(named)-1] // the function that contains the inlined calls
	if f.Function == "" || f.Inlined || f.Offset == 0 {
		return false
	}
	w.frames[0].PC = f.Address - f.Offset
	return true
}

// keep remembers the stack of the last walk under n.key, unless an image was not read in time, or Shared has no room.
// It returns t, or the equal stack that Shared keeps.
func (n *StackNamer) keep(sp *StackSpace, t *backtrace.Thread, space *naming.Space) *backtrace.Thread {
	if n.options.Shared != nil {
		kept := n.options.Shared.of(t)
		if kept == nil {
			return t
		}
		t = kept
	}
	if n.options.CompleteLater {
		t.Frames = slices.Clone(t.Frames) // Clone drops unused capacity
		sp.named = append(sp.named, namedStack{t, slices.Clone(n.last.frames)})
	}
	switch {
	case n.options.MaxBytes > 0:
		n.used += sizeOf(t) + len(n.last.frames)*int(unsafe.Sizeof(unwind.Frame{})) + len(n.key)
	case len(sp.known) >= n.options.MaxStacks:
		clear(sp.known)
	}
	if space.Unread == "" {
		sp.known[string(n.key)] = t
	}
	return t
}

// addLevels returns the stack of the last walk with levels: the PL/pgSQL functions that the parameter memory shows. It
// does not change named. If there are no such functions, it returns named.
func (n *StackNamer) addLevels(
	sp *StackSpace, space *naming.Space, named *backtrace.Thread, th *snapshot.Thread, memory []snapshot.Stack,
) *backtrace.Thread {
	if sp.server == nil {
		known := serverProcess{}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", sp.pid)); err == nil {
			known = n.capturer.lookAtProgram(sp.pid, space, exe)
		}
		if space.Unread != "" {
			return named
		}
		sp.server = &known
	}
	if sp.server.process == nil || len(named.Frames) == 0 {
		return named
	}
	copied := frozen(&th.Stack, memory)
	in := levels.Input{
		Frozen: copied,
		// Memory that was not copied with the stack may have changed. So Live reads only code and constants from the
		// process.
		Live: func(addr uint64, b []byte) int {
			if n := copied(addr, b); n > 0 || !constant(space, addr) {
				return n
			}
			n, _ := process.ReadMemoryWithTimeout(sp.pid, addr, b)
			return n
		},
		Code:   func(addr uint64) levels.Code { return sp.server.describe(space, addr) },
		Frames: spans(th.Stack.Start, n.last.frames, physical(n.last.frames, named.Frames), named.Frames),
	}
	levels := sp.server.process.Read(&in).Levels
	if len(levels) == 0 {
		return named
	}
	for _, l := range levels {
		n.key = fmt.Appendf(n.key, "\x00%d\x00%s\x00%d", l.Frame, l.Level.Function, l.Level.Line)
	}
	if known := sp.known[string(n.key)]; known != nil {
		return known
	}
	if n.options.MaxBytes > 0 && n.used > n.options.MaxBytes {
		n.last.shortened = false
		return TooManyStacks
	}
	with := *named
	with.Frames = slices.Clone(named.Frames)
	for _, l := range levels {
		f := &with.Frames[l.Frame]
		f.Levels = append(slices.Clip(f.Levels), l.Level)
	}
	return n.keep(sp, &with, space)
}

// constant reports whether an address lies in a mapping of a file that the process cannot write to, or in code of a
// file that the process has moved to other memory.
func constant(space *naming.Space, addr uint64) bool {
	i := space.Mapping(addr)
	if i < 0 || space.Maps[i].Perms&process.Write != 0 {
		return false
	}
	if space.Maps[i].Inode != 0 {
		return true
	}
	_, f, ok := space.Lookup(addr)
	return ok && f.Moved
}

// completeWait is how long Complete waits for source lines and derived names.
const completeWait = 10 * time.Second

// Complete adds the source lines and derived names that were not known when Name returned to the results of Name. It
// waits for them for at most completeWait. The spaces then forget their stacks. It is for
// StackNamerOptions.CompleteLater.
func (n *StackNamer) Complete(spaces []*StackSpace) {
	files := n.filesDeadline()
	defer files.Stop()
	late := symbolize.Deadline{After: completeWait}
	defer late.Stop()
	for _, sp := range spaces {
		space := n.capturer.processes.Open(sp.pid, sp.startTime, sp.Maps)
		space.Files = &files
		space.ReadLater(true)
		for i := range sp.named {
			s := &sp.named[i]
			frames, _ := space.Name(s.walked, naming.FrameLimit(n.options.MaxFrames), &late)
			s.rename(slices.Clone(frames)) // Clone drops unused capacity
		}
		sp.named = nil
		clear(sp.known)
	}
}

// appendWalk appends all properties of a walk on which the names of its frames depend.
func appendWalk(key []byte, frames []unwind.Frame) []byte {
	for i := range frames {
		f := &frames[i]
		var how byte
		if f.Exact {
			how |= 1
		}
		if f.Signal {
			how |= 2
		}
		key = append(binary.LittleEndian.AppendUint64(key, f.PC), how, byte(f.Method))
	}
	return key
}
