package capture

import (
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/trace"
)

// name turns the walk's frames into a trace's.
func (sp *space) name(frames []unwind.Frame) []trace.Frame {
	out := make([]trace.Frame, len(frames))
	for i := range frames {
		out[i] = sp.nameFrame(&frames[i])
		out[i].Level = i
	}
	return out
}

func (sp *space) nameFrame(f *unwind.Frame) trace.Frame {
	out := trace.Frame{Address: f.PC, Offset: f.PC, Module: "[unmapped]", Note: note(f)}
	m, where, ok := sp.find(f.Lookup())
	if !ok {
		if i := sp.mapping(f.PC); i >= 0 {
			out.Module, out.Offset = moduleName(sp.maps[i].Path), f.PC-sp.maps[i].Start
		}
		return out
	}
	out.Module, out.Offset = moduleName(m.Path), f.PC-m.Start
	mod := where.module
	if mod == nil {
		if m.Inode != 0 {
			// The file's own offset says more than the distance in a mapping.
			out.Offset += m.Offset
		}
		return out
	}
	out.BuildID = mod.image.BuildID()
	out.ModuleOffset = f.PC - where.bias
	out.Offset = out.ModuleOffset
	if fn, start, ok := mod.function(f.Lookup() - where.bias); ok {
		out.Function, out.Offset = fn, out.ModuleOffset-start
	}
	return out
}

// function returns the demangled name and start of the function at an image
// address. A symbol counts only inside its own size and inside the FDE that
// covers the address: anything else would be the nearest symbol's name, which
// is a wrong one.
func (m *module) function(addr uint64) (string, uint64, bool) {
	symbols := m.symbolTable()
	if symbols == nil {
		return "", 0, false
	}
	var start, end uint64
	if t := m.table(); t != nil {
		if fde, err := t.Find(addr); err == nil {
			start, end = fde.Start, fde.End
		}
	}
	sym, ok := symbols.Lookup(addr, start, end)
	if !ok {
		return "", 0, false
	}
	return symbol.Demangle(sym.Name), sym.Addr, true
}

func note(f *unwind.Frame) string {
	switch {
	case f.Signal:
		return "signal handler called"
	case f.Method == unwind.ByFramePointer:
		return "by frame pointer"
	case f.Method == unwind.ByRecovery:
		return "by recovered frame pointer"
	case f.Method == unwind.ByReturnAddress:
		return "caller of a bad address"
	case f.Method == unwind.ByReturnRegister:
		return "by return register"
	default:
		return ""
	}
}
