package procmap

import (
	"runtime"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/jit"
	"pg_stat_backtrace/worker/symbolize"
	"pg_stat_backtrace/worker/trace"
)

// FrameLimit is the bound on the frames of a thread, inlined calls included.
func FrameLimit(maxFrames int) int {
	if maxFrames > 0 {
		return maxFrames
	}
	return unwind.DefaultMaxFrames
}

// Name turns the walk's frames into a trace's, at most limit: inlined calls
// are frames too, as they are in gdb. It reports whether some were left out.
// Source lines that are not there by the deadline are missing.
func (sp *Space) Name(frames []unwind.Frame, limit int, late *symbolize.Deadline) (out []trace.Frame, cut bool) {
	out = make([]trace.Frame, 0, len(frames))
	if len(frames) > 0 {
		sp.PrefetchInnermost(frames[0].Lookup()) // of a core file and of a goroutine nobody has
	}
	if sp.Unfamiliar {
		sp.Unfamiliar = false
		sp.prefetch(frames)
	}
	for i := range frames {
		out = sp.nameFrame(out, &frames[i], late)
	}
	if cut = len(out) > limit; cut {
		out = out[:limit]
	}
	for i := range out {
		out[i].Level = i
	}
	return out, cut
}

// PrefetchInnermost has what names the innermost frame, by its look-up address, read while the stack is unwound, if
// none in its image has been the innermost one yet: to expand the image's lines may take longer than all the rest.
func (sp *Space) PrefetchInnermost(addr uint64) {
	_, where, ok := sp.Lookup(addr)
	m := where.Module
	if !ok || m == nil || m.Prefetched.Load() || m.Prefetched.Swap(true) {
		return
	}
	sp.Unfamiliar = true
	m.ReadAhead(addr - where.Bias)
	runtime.Gosched() // let it begin: there may be one processor
}

// prefetch reads the symbols of all images that frames are in, while their lines are looked up: both may take their
// time when they are needed for the first time.
func (sp *Space) prefetch(frames []unwind.Frame) {
	modules := make([]*symbolize.Module, len(frames))
	for i := range frames {
		_, where, ok := sp.Lookup(frames[i].Lookup())
		if !ok || where.Module == nil {
			continue
		}
		modules[i] = where.Module
		if !frames[i].Signal {
			modules[i].Lines.QueueLookup(frames[i].Lookup() - where.Bias)
		}
	}
	for _, m := range modules {
		if m == nil {
			continue
		}
		if _, ok := m.SymbolTable(sp.Files); ok {
			m.Lines.StartLookups()
		}
	}
}

// nameFrame appends a frame, behind the calls that are inlined there.
func (sp *Space) nameFrame(dst []trace.Frame, f *unwind.Frame, late *symbolize.Deadline) []trace.Frame {
	out := trace.Frame{Address: f.PC, Offset: f.PC, Module: "[unmapped]", Note: note(f)}
	m, where, ok := sp.Lookup(f.Lookup())
	if !ok {
		if i := sp.Mapping(f.PC); i >= 0 {
			out.Module, out.Offset = symbolize.ModuleName(sp.Maps[i].Path), f.PC-sp.Maps[i].Start
		}
		return append(dst, out)
	}
	out.Module, out.Offset = symbolize.ModuleName(m.Path), f.PC-m.Start
	mod := where.Module
	if mod == nil {
		if m.Inode != 0 {
			// The file's own offset says more than the distance in a mapping.
			out.Offset += m.Offset
		}
		sp.Generated.Name(&out, f.Lookup())
		if out.Function == "" && m.Inode == 0 {
			sp.namePerf(&out, f.Lookup())
		}
		return append(dst, out)
	}
	out.Module = where.Name
	out.BuildID = mod.Image.BuildID()
	out.ModuleOffset = f.PC - where.Bias
	out.Offset = out.ModuleOffset
	return mod.AppendFrames(dst, &out, f.Lookup()-where.Bias, sp.Files, late)
}

// namePerf names a frame in code that a program has compiled at run time by the program's perf map, if it has one.
// The program writes the map itself and may be late, so the note says where the name comes from.
func (sp *Space) namePerf(out *trace.Frame, addr uint64) {
	if sp.key.StartTime == 0 || sp.Memory != nil {
		return // not a live process
	}
	if !sp.perfRead {
		sp.perfRead = true
		p := &symbolize.Lazy[*jit.PerfMap]{}
		sp.perf, _ = p.Get(sp.Files, sp.cache.images.Sources.Tell,
			func() *jit.PerfMap { return sp.cache.perf.Read(sp.key.PID) })
	}
	if sp.perf == nil {
		return
	}
	name, start, ok := sp.perf.Find(addr)
	if !ok {
		return
	}
	out.Function, out.Offset = name, out.Address-start
	if out.Note != "" {
		out.Note += ", "
	}
	out.Note += "name from the program's perf map"
}
