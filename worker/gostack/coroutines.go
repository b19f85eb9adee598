package gostack

import (
	"debug/elf"
	"slices"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/procmap"
	"pg_stat_backtrace/worker/symbolize"
)

// Go's run time keeps the goroutine that a thread runs in a thread-local variable, also while it is in C code. What
// else a walk needs at a switch of stacks follows from there, and is copied in the stop (ptrace.Coroutines). Which
// programs and libraries of a process are Go's shows when a walk meets them; captures after that one know.

// Process is what is known of one process; immutable.
type Process struct {
	Images     []symbolize.Placed // of Go, in which frames were found
	Coroutines *ptrace.Coroutines
}

// Trail is what to copy in the stop for it; nil: nothing.
func (p *Process) Trail() *ptrace.Coroutines {
	if p == nil {
		return nil
	}
	return p.Coroutines
}

// Coroutines says where the goroutines of a process's threads are.
func Coroutines(a *arch.Arch, sp *procmap.Space, images []symbolize.Placed) *ptrace.Coroutines {
	g := unwind.GoStructures()
	out := &ptrace.Coroutines{
		Low: g.StackLow, High: g.StackHigh, Saved: g.SavedSP, Owner: g.Thread, Size: g.Size, OwnerSize: g.ThreadSize,
	}
	for _, f := range images {
		if f.Module.Image.AddrSize() != 8 {
			continue
		}
		for _, off := range goVariable(sp, f) {
			root := ptrace.Root{Register: a.Go.ThreadPointer, Offset: off}
			if !slices.Contains(out.Roots, root) {
				out.Roots = append(out.Roots, root)
			}
		}
	}
	if len(out.Roots) == 0 {
		return nil
	}
	return out
}

// goVariable returns the places, from the thread pointer, of which one is the goroutine's. A library asks the dynamic
// linker for it; a program's thread-local variables are next to the thread pointer, and Go's is the only one unless C
// code has others (ELF Handling For Thread-Local Storage, 3.4.6, variant II).
func goVariable(sp *procmap.Space, f symbolize.Placed) []int64 {
	if places := fromLinker(sp, f); len(places) > 0 {
		return places
	}
	const most = 4
	places := []int64{-8}
	if s, ok := f.Module.Image.Program(elf.PT_TLS); ok {
		for off := uint64(8); off < s.Memsz && len(places) < most; off += 8 {
			places = append(places, -8-int64(off))
		}
	}
	return places
}

// fromLinker returns what the dynamic linker has filled in for thread-local variables of a library.
func fromLinker(sp *procmap.Space, f symbolize.Placed) []int64 {
	const (
		entry      = 24 // bytes: address, type, addend
		most       = 4
		maxEntries = 1 << 20
	)
	size, _, err := f.Module.Image.SectionReader(relocations)
	if err != nil || size > maxEntries*entry {
		return nil
	}
	data, _, err := f.Module.Image.Section(relocations)
	if err != nil {
		return nil
	}
	order := f.Module.Image.Order()
	var places []int64
	for ; len(data) >= entry && len(places) < most; data = data[entry:] {
		if elf.R_X86_64(uint32(order.Uint64(data[8:]))) != elf.R_X86_64_TPOFF64 {
			continue
		}
		var word [8]byte
		if sp.ReadAll(order.Uint64(data)+f.Bias, word[:]) {
			places = append(places, int64(order.Uint64(word[:])))
		}
	}
	return places
}

// relocations is the section of what the dynamic linker has to fill in.
const relocations = ".rela.dyn"
