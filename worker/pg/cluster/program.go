package cluster

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// ErrNoProgram means that no image of a process has the variables of a PostgreSQL server.
var ErrNoProgram = errors.New("no program or library of the process exports the variables of a PostgreSQL server")

// variables are names that every server exports, stripped or not. No other program has all of them.
//
//nolint:gochecknoglobals // a table
var variables = []string{"my_wait_event_info", "error_context_stack", "debug_query_string"}

// Program is the file of a server's program, and where a process has mapped it.
type Program struct {
	symbolize.Placed

	// Mapping is the mapping by which the program was found. It stays the same as long as the process runs this
	// program.
	Mapping process.Mapping
	// Path is the path of the program's file in the process's mappings. Deleted is set if they mark the file as
	// deleted.
	Path    string
	Deleted bool

	loaded symbolize.Loaded
	maps   []process.Mapping
}

// Variables returns the addresses, in the process's memory, of those of the given variables that the program exports.
func (p *Program) Variables(names ...string) (map[string]uint64, error) {
	found, err := p.Module.Image.Defined(names...)
	if err != nil {
		return nil, fmt.Errorf("read the server's program: %w", err)
	}
	for name := range found {
		found[name] += p.Bias
	}
	return found, nil
}

// Open opens the program's file, even if it was deleted or replaced after the process mapped it. The caller closes it.
func (p *Program) Open() (*os.File, error) { return p.loaded.OpenFile() }

// Offset returns the position in the program's file of the code of an exported function. It returns false if the
// program exports no such function, or if the process has moved the code to memory that is not mapped from the file:
// then the kernel cannot put a probe there.
func (p *Program) Offset(function string) (uint64, bool) {
	found, err := p.Module.Image.Defined(function)
	addr := found[function]
	if err != nil || addr == 0 || !p.Module.Image.Executable(addr) || !p.inFile(addr+p.Bias) {
		return 0, false
	}
	return p.loaded.Offset(addr)
}

// inFile reports whether the process's memory at addr is mapped from the program's file.
func (p *Program) inFile(addr uint64) bool {
	i := process.IndexOf(p.maps, addr)
	return i >= 0 && p.loaded.IsFile(&p.maps[i])
}

// MovedCode returns two sizes in bytes: of the program's code that the process has moved to memory that is not mapped
// from the program's file, and of all of the program's code.
func (p *Program) MovedCode() (moved, all uint64) {
	for _, s := range p.Module.Image.Segments() {
		if s.Flags&elf.PF_X == 0 {
			continue
		}
		for i := range p.maps {
			m := &p.maps[i]
			start, end := max(m.Start, s.Vaddr+p.Bias), min(m.End, s.Vaddr+p.Bias+s.Filesz)
			if start >= end {
				continue
			}
			all += end - start
			if !p.loaded.IsFile(m) {
				moved += end - start
			}
		}
	}
	return moved, all
}

// FindProgram finds the program of a server in a process. exe is the file that the kernel runs, as in /proc/PID/exe. Its image
// is preferred, then an image that was linked as a program, then any other. FindProgram returns false if no image is a
// server's. If an image could not be read in time, space.Unread is set.
func FindProgram(pid int, space *naming.Space, exe string) (Program, bool) {
	exe = strings.TrimSuffix(exe, " (deleted)")
	var best Program
	found := false
	type place struct {
		module *symbolize.Module
		bias   uint64
	}
	seen := make(map[place]bool)
	for _, order := range []func(m *process.Mapping) bool{
		func(m *process.Mapping) bool { return isCode(m) && m.Path == exe },
		func(m *process.Mapping) bool { return isData(m) && m.Path == exe }, // the code of exe may be in other memory
		isCode,
		isData,
	} {
		for i := range space.Maps {
			m := &space.Maps[i]
			if !order(m) {
				continue
			}
			f := space.Resolve(i)
			at := place{f.Module, f.Bias}
			if f.Module == nil || seen[at] {
				continue
			}
			if seen[at] = true; !isServer(space, &f) {
				continue
			}
			p := Program{Placed: f, Mapping: *m, loaded: symbolize.LoadedAt(pid, space.Maps, i, &f), maps: space.Maps}
			p.Path, p.Deleted = p.loaded.Path, p.loaded.Deleted
			if p.Path == exe || f.Module.Image.IsProgram() {
				return p, true
			}
			if !found {
				best, found = p, true
			}
		}
	}
	return best, found
}

// isCode and isData report whether a mapping may have code or variables of an image.
func isCode(m *process.Mapping) bool { return m.Perms&process.Exec != 0 }
func isData(m *process.Mapping) bool {
	return m.Perms&(process.Write|process.Exec) == process.Write && m.Inode != 0 && strings.HasPrefix(m.Path, "/")
}

// isServer reports whether an image has the variables of a server. A file may also be mapped as data, at another
// address than the program. So the variables must be in memory that the process can write.
func isServer(space *naming.Space, f *symbolize.Placed) bool {
	found, err := f.Module.Image.Defined(variables...)
	if err != nil || len(found) < len(variables) {
		return false
	}
	for _, addr := range found {
		i := space.Mapping(addr + f.Bias)
		if i < 0 || space.Maps[i].Perms&process.Write == 0 {
			return false
		}
	}
	return true
}

// imagePatience bounds the wait for images: a read of a file or of memory may never return.
const imagePatience = 3 * time.Second

// caches keep the images of all servers that this process examines, by build-id.
type caches struct {
	images    *symbolize.Cache
	processes *naming.Cache
}

//nolint:gochecknoglobals // a cache
var shared = sync.OnceValues(func() (*caches, error) {
	host := arch.Host()
	if host == nil {
		return nil, symbolize.ErrArchitecture
	}
	images := symbolize.NewCache(host, &symbolize.Sources{})
	return &caches{images, naming.NewCache(images)}, nil
})

// ProgramOf finds the program of a server in one of its processes. The error wraps ErrNoProgram if the process has none.
func ProgramOf(pid int) (Program, error) {
	c, err := shared()
	if err != nil {
		return Program{}, err
	}
	stat, err := process.ReadStat(pid)
	if err != nil {
		return Program{}, fmt.Errorf("read the state of process %d: %w", pid, err)
	}
	exe, err := os.Readlink(symbolize.ProcFolder(pid) + "/exe")
	if err != nil {
		return Program{}, fmt.Errorf("find the server's program: %w", err)
	}
	maps, err := process.Maps(pid)
	if err != nil {
		return Program{}, fmt.Errorf("read the server's mappings: %w", err)
	}
	space := c.processes.Open(pid, stat.StartTime, maps)
	space.Files = &symbolize.Deadline{After: imagePatience}
	defer space.Files.Stop()
	p, ok := FindProgram(pid, space, exe)
	switch {
	case ok:
		return p, nil
	case space.Unread != "":
		return Program{}, fmt.Errorf("process %d: %s has not been read in time", pid, space.Unread)
	}
	return Program{}, fmt.Errorf("process %d (%s): %w", pid, exe, ErrNoProgram)
}
