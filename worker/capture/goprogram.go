package capture

import (
	"debug/elf"
	"errors"
	"fmt"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/goroutine"
)

// goProgram is a Go program or library of a process.
type goProgram struct {
	version string
	runtime *goroutine.Runtime
	// first is the number of the first of its blocks: the list's head, the list, and for each goroutine its structure and
	// its stack; threads are behind. The stack's block may have no length.
	first int
	all   []uint64
	// total is the length of the list, left how many goroutines are too many for one stop.
	total, left int
}

// goPrograms finds Go's run time in the images of a process. There may be several, of libraries.
func goPrograms(sp *space) ([]goProgram, error) {
	out := make([]goProgram, 0, 1)
	var failed error
	seen := make(map[*module]bool)
	for i := range sp.maps {
		if sp.maps[i].Perms&procfs.Exec == 0 {
			continue
		}
		f := sp.resolve(i)
		if f.module == nil || seen[f.module] || !sp.isGo(f.module) {
			continue
		}
		seen[f.module] = true
		p, err := newGoProgram(sp, f)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", f.module.name, err))
			continue
		}
		out = append(out, p)
	}
	switch {
	case len(out) > 0:
		return out, nil
	case failed != nil:
		return nil, failed
	}
	return nil, ErrNotGo
}

// newGoProgram finds the run time of one image.
func newGoProgram(sp *space, f found) (goProgram, error) {
	img := f.module.image
	if img.AddrSize() != 8 {
		return goProgram{}, fmt.Errorf("%w: not one of 64 bits", goroutine.ErrVersion)
	}
	read := sp.readAll
	out := goProgram{}
	if data, addr, err := img.Section(".go.buildinfo"); err == nil {
		_ = read(addr+f.bias, data) // relocated; if it cannot be read, as it is in the file
		out.version = goroutine.Version(data, img.Order(), read)
	}
	layout, err := goroutine.LayoutOf(out.version)
	if err != nil {
		if layout, err = goroutine.LayoutFrom(img); err != nil {
			return out, fmt.Errorf("%w: %q", goroutine.ErrVersion, out.version)
		}
	}
	p := goroutine.Program{Order: img.Order(), Layout: layout}
	if symbols, err := img.Symbols(".symtab"); err == nil {
		for s := range symbols {
			if s.Name == "runtime.allgs" && s.Size == goroutine.ListSize {
				p.List = s.Addr + f.bias
				break
			}
		}
	}
	for _, s := range img.Segments() {
		if permsOf(s.Flags)&procfs.Write == 0 || s.Memsz > maxVariables {
			continue
		}
		data := make([]byte, s.Memsz)
		n, _ := sp.reader()(s.Vaddr+f.bias, data)
		p.Writable = append(p.Writable, goroutine.Segment{Addr: s.Vaddr + f.bias, Data: data[:n]})
	}
	out.runtime, err = goroutine.New(&p, read)
	return out, err
}

func permsOf(flags elf.ProgFlag) procfs.Perms {
	var p procfs.Perms
	if flags&elf.PF_R != 0 {
		p |= procfs.Read
	}
	if flags&elf.PF_W != 0 {
		p |= procfs.Write
	}
	if flags&elf.PF_X != 0 {
		p |= procfs.Exec
	}
	return p
}
