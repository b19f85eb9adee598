package naming

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// GoProgram is a Go program or library of a process.
type GoProgram struct {
	version string
	runtime *golang.Runtime
	// all has the addresses of the goroutines. The field first is the index in GoPlan.Blocks of the program's first
	// block, the header of the list of goroutines. Two blocks for each goroutine in all follow: its structure and its
	// stack. The last blocks are structures of threads.
	first int
	all   []uint64
	// total is the length of the list. left is the number of goroutines beyond the limit of one stop.
	total, left int
}

// GoPrograms finds Go's runtime in the images of a process. A process with Go libraries may have several. The error is
// ErrNotGo if the process has none, or the error of ctx if ctx ends.
func GoPrograms(ctx context.Context, sp *Space) ([]GoProgram, error) {
	out := make([]GoProgram, 0, 1)
	var failed error
	seen := make(map[*symbolize.Module]bool)
	left := searchRoom{variables: maxVariables, reads: golang.MaxReads}
	read := func(addr uint64, b []byte) bool { return ctx.Err() == nil && sp.ReadAll(addr, b) }
	for i := range sp.Maps {
		if sp.Maps[i].Perms&process.Exec == 0 {
			continue
		}
		f := sp.Resolve(i)
		if f.Module == nil || seen[f.Module] || !sp.IsGo(f.Module) {
			continue
		}
		seen[f.Module] = true
		p, err := newProgram(sp, f, read, &left)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", f.Module.Name, err))
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

// searchRoom bounds the search for all programs of a process together: bytes of variables, and reads of memory.
type searchRoom struct {
	variables uint64
	reads     int
}

// newProgram finds the runtime of one image. It subtracts its reads and the bytes of variables from left.
func newProgram(sp *Space, f symbolize.Placed, read golang.Read, left *searchRoom) (GoProgram, error) {
	img := f.Module.Image
	if img.AddrSize() != 8 {
		return GoProgram{}, fmt.Errorf("%w: not one of 64 bits", golang.ErrRuntimeVersion)
	}
	out := GoProgram{}
	if data, addr, err := img.Section(".go.buildinfo"); err == nil {
		_ = read(addr+f.Bias, data) // the bytes in memory are relocated; if they cannot be read, the file's bytes stay
		out.version = golang.Version(data, img.Order(), read)
	}
	layout, err := golang.LayoutOf(out.version)
	if err != nil {
		if layout, err = golang.LayoutFrom(img); err != nil {
			return out, fmt.Errorf("%w: %q", golang.ErrRuntimeVersion, out.version)
		}
	}
	p := golang.Program{Order: img.Order(), Layout: layout, Left: &left.reads}
	if symbols, err := img.Symbols(".symtab"); err == nil {
		for s := range symbols {
			if s.Name == "runtime.allgs" && s.Size == golang.ListSize {
				p.List = s.Addr + f.Bias
				break
			}
		}
	}
	p.Writable = variables(img, f.Bias, sp.Reader(), &left.variables)
	out.runtime, err = golang.NewRuntime(&p, read)
	return out, err
}

// variables reads the writable segments of an image, as far as they have at most left bytes together, and subtracts their size
// from left.
func variables(img *elfimage.Image, bias uint64, read symbolize.MemoryReader, left *uint64) []golang.Segment {
	var out []golang.Segment
	for _, s := range img.Segments() {
		if PermsOf(s.Flags)&process.Write == 0 || s.Memsz > *left {
			continue
		}
		*left -= s.Memsz
		data := make([]byte, s.Memsz)
		n, _ := read(s.Vaddr+bias, data)
		out = append(out, golang.Segment{Addr: s.Vaddr + bias, Data: data[:n]})
	}
	return out
}

// PermsOf returns the permissions of a segment.
func PermsOf(flags elf.ProgFlag) process.Perms {
	var p process.Perms
	if flags&elf.PF_R != 0 {
		p |= process.Read
	}
	if flags&elf.PF_W != 0 {
		p |= process.Write
	}
	if flags&elf.PF_X != 0 {
		p |= process.Exec
	}
	return p
}
