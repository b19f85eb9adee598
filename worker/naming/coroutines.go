package naming

import (
	"debug/elf"
	"slices"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// Go's runtime keeps a thread's current goroutine in a thread-local variable, also while the thread runs C code. From
// the goroutine, a walk finds the values that it needs where Go and C switch stacks. So the stop copies that memory
// (snapshot.Coroutines). The first walk with frames in Go code shows which images are Go's, and later captures use this
// knowledge.

// GoProcess has the Go images of one process. It is immutable.
type GoProcess struct {
	Images     []symbolize.Placed // Go images in which frames were found
	Coroutines *snapshot.Coroutines
}

// Reads returns the memory of coroutines that a stop must copy, or nil if there is none.
func (p *GoProcess) Reads() *snapshot.Coroutines {
	if p == nil {
		return nil
	}
	return p.Coroutines
}

// Coroutines returns where a stop finds the current goroutine of each thread, for the given Go images. It returns nil
// if there is no such place.
func Coroutines(a *arch.Arch, sp *Space, images []symbolize.Placed) *snapshot.Coroutines {
	g := unwind.GoStructures()
	out := &snapshot.Coroutines{
		Low: g.StackLow, High: g.StackHigh, Saved: g.SavedSP, Owner: g.Thread, Size: g.Size, OwnerSize: g.ThreadSize,
	}
	for _, f := range images {
		if f.Module.Image.AddrSize() != 8 {
			continue
		}
		for _, off := range goVariable(sp, f) {
			root := snapshot.Root{Register: a.Go.ThreadPointer, Offset: off}
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

// goVariable returns candidates for the offset of the goroutine variable from the thread pointer. For a library, the
// dynamic linker has stored the offset in the process's memory. A program's thread-local variables are next to the
// thread pointer, and Go's variable is the only one unless C code has others (ELF Handling For Thread-Local Storage,
// 3.4.6, variant II).
func goVariable(sp *Space, f symbolize.Placed) []int64 {
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

// fromLinker returns the offsets that the dynamic linker has stored for a library's thread-local variables.
func fromLinker(sp *Space, f symbolize.Placed) []int64 {
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

// relocations is the section with the relocations for the dynamic linker.
const relocations = ".rela.dyn"
