package naming

import (
	"runtime"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// FrameLimit returns the bound on the frames of a thread, inlined calls included.
func FrameLimit(maxFrames int) int {
	if maxFrames > 0 {
		return maxFrames
	}
	return unwind.DefaultMaxFrames
}

// Name turns the frames of a walk into frames of a trace, at most limit. Inlined calls are frames of their own, as in
// gdb. cut reports whether frames were left out. Source lines that are not known by the deadline are missing.
func (sp *Space) Name(frames []unwind.Frame, limit int, late *symbolize.Deadline) (out []backtrace.Frame, cut bool) {
	out = make([]backtrace.Frame, 0, len(frames))
	if len(frames) > 0 {
		sp.PrefetchInnermost(frames[0].Lookup()) // walks of core files and of goroutines have not called it
	}
	if sp.FirstInImage {
		sp.FirstInImage = false
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

// PrefetchInnermost starts to read the symbols and lines for the innermost frame, while the stack is unwound. addr is
// the frame's lookup address. Only the first call for an image starts a read. Expanding the image's lines may take
// longer than the rest of a capture.
func (sp *Space) PrefetchInnermost(addr uint64) {
	_, where, ok := sp.Lookup(addr)
	m := where.Module
	if !ok || m == nil || m.Prefetched.Load() || m.Prefetched.Swap(true) {
		return
	}
	sp.FirstInImage = true
	m.ReadAhead(addr - where.Bias)
	runtime.Gosched() // let the goroutine begin: there may be only one processor
}

// prefetch reads the symbols of all images in which frames lie, and starts to look up their lines in the background.
// Both may take long for the first time.
func (sp *Space) prefetch(frames []unwind.Frame) {
	modules := make([]*symbolize.Module, len(frames))
	for i := range frames {
		_, where, ok := sp.Lookup(frames[i].Lookup())
		if !ok || where.Module == nil {
			continue
		}
		if where.Module.Kept(frames[i].Lookup()-where.Bias, sp.Files) {
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

// nameFrame appends the calls that are inlined at the address of a frame, and then the frame.
func (sp *Space) nameFrame(dst []backtrace.Frame, f *unwind.Frame, late *symbolize.Deadline) []backtrace.Frame {
	out := backtrace.Frame{Address: f.PC, Offset: f.PC, Module: "[unmapped]", Note: note(f)}
	m, where, ok := sp.Lookup(f.Lookup())
	if !ok {
		if i := sp.Mapping(f.PC); i >= 0 {
			out.Module, out.Offset = symbolize.ModuleName(sp.Maps[i].Path), f.PC-sp.Maps[i].Start
		}
		sp.nameLater(&out, f.Lookup())
		return append(dst, out)
	}
	out.Module, out.Offset = symbolize.ModuleName(m.Path), f.PC-m.Start
	mod := where.Module
	if mod == nil {
		if m.Inode != 0 {
			// The offset in the file is more useful than the distance from the mapping's start.
			out.Offset += m.Offset
		}
		sp.Generated.Name(&out, f.Lookup())
		sp.nameLater(&out, f.Lookup())
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

// nameLater names the module of a frame in generated code that was read at another moment.
func (sp *Space) nameLater(out *backtrace.Frame, addr uint64) {
	if !sp.readLater || out.Module == GeneratedModule || sp.inFile(addr) {
		return
	}
	if start, ok := sp.later.Start(addr); ok {
		out.Module, out.Offset = GeneratedModule, out.Address-start
	}
}

// namePerf names a frame in code compiled at run time, by the program's perf map if it has one. The program writes the
// map itself and may write it late, so the note says where the name comes from.
func (sp *Space) namePerf(out *backtrace.Frame, addr uint64) {
	if sp.key.StartTime == 0 || sp.Memory != nil {
		return // not a live process
	}
	if !sp.perfRead {
		sp.perfRead = true
		p := &symbolize.Lazy[*symbol.PerfMap]{}
		sp.perf, _ = p.Get(sp.Files, sp.cache.images.Sources.Warn,
			func() *symbol.PerfMap { return sp.cache.perf.Read(sp.key, sp.cache.images.Sources.Warn) })
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
