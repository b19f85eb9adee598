package capture

import (
	"runtime"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/jit"
	"pg_stat_backtrace/worker/trace"
)

// maxLines is the bound on the frames of a thread, inlined calls included.
func maxLines(maxFrames int) int {
	if maxFrames > 0 {
		return maxFrames
	}
	return unwind.DefaultMaxFrames
}

// name turns the walk's frames into a trace's, at most limit: inlined calls
// are frames too, as they are in gdb. It reports whether some were left out.
// Source lines that are not there by the deadline are missing.
func (sp *space) name(frames []unwind.Frame, limit int, late *deadline) (out []trace.Frame, cut bool) {
	out = make([]trace.Frame, 0, len(frames))
	if len(frames) > 0 {
		sp.prefetchInnermost(frames[0].Lookup()) // of a core file and of a goroutine nobody has
	}
	if sp.unfamiliar {
		sp.unfamiliar = false
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

// prefetchInnermost has what names the innermost frame, by its look-up address, read while the stack is unwound, if
// none in its image has been the innermost one yet: to expand the image's lines may take longer than all the rest.
func (sp *space) prefetchInnermost(addr uint64) {
	_, where, ok := sp.find(addr)
	m := where.module
	if !ok || m == nil || m.prefetched.Load() || m.prefetched.Swap(true) {
		return
	}
	sp.unfamiliar = true
	m.readAhead(addr - where.bias)
	runtime.Gosched() // let it begin: there may be one processor
}

// prefetch reads the symbols of all images that frames are in, while their lines are looked up: both may take their
// time when they are needed for the first time.
func (sp *space) prefetch(frames []unwind.Frame) {
	modules := make([]*module, len(frames))
	for i := range frames {
		_, where, ok := sp.find(frames[i].Lookup())
		if !ok || where.module == nil {
			continue
		}
		modules[i] = where.module
		if !frames[i].Signal {
			modules[i].lines.queueLookup(frames[i].Lookup() - where.bias)
		}
	}
	for _, m := range modules {
		if m == nil {
			continue
		}
		if _, ok := m.symbolTable(sp.files); ok {
			m.lines.startLookups()
		}
	}
}

// nameFrame appends a frame, behind the calls that are inlined there.
func (sp *space) nameFrame(dst []trace.Frame, f *unwind.Frame, late *deadline) []trace.Frame {
	out := trace.Frame{Address: f.PC, Offset: f.PC, Module: "[unmapped]", Note: note(f)}
	m, where, ok := sp.find(f.Lookup())
	if !ok {
		if i := sp.mapping(f.PC); i >= 0 {
			out.Module, out.Offset = moduleName(sp.maps[i].Path), f.PC-sp.maps[i].Start
		}
		return append(dst, out)
	}
	out.Module, out.Offset = moduleName(m.Path), f.PC-m.Start
	mod := where.module
	if mod == nil {
		if m.Inode != 0 {
			// The file's own offset says more than the distance in a mapping.
			out.Offset += m.Offset
		}
		sp.generated.name(&out, f.Lookup())
		if out.Function == "" && m.Inode == 0 {
			sp.namePerf(&out, f.Lookup())
		}
		return append(dst, out)
	}
	out.Module = where.name
	out.BuildID = mod.image.BuildID()
	out.ModuleOffset = f.PC - where.bias
	out.Offset = out.ModuleOffset
	return mod.appendFrames(dst, &out, f.Lookup()-where.bias, sp.files, late)
}

// namePerf names a frame in code that a program has compiled at run time by the program's perf map, if it has one.
// The program writes the map itself and may be late, so the note says where the name comes from.
func (sp *space) namePerf(out *trace.Frame, addr uint64) {
	if sp.key.startTime == 0 || sp.memory != nil {
		return // not a live process
	}
	if !sp.perfRead {
		sp.perfRead = true
		p := &lazy[*jit.PerfMap]{}
		sp.perf, _ = p.get(sp.files, sp.spaces.images.shared.tell,
			func() *jit.PerfMap { return sp.spaces.perf.read(sp.key.pid) })
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
