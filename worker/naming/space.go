package naming

import (
	"slices"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// Space is the executable part of one process's address space at the time of a snapshot. It implements
// unwind.Modules, for use by one goroutine.
type Space struct {
	cache  *Cache
	key    ProcessKey
	pid    int
	Maps   []process.Mapping
	Known  map[process.Mapping]symbolize.Placed // images found so far; shared, guarded by cache.mu
	Memory symbolize.MemoryReader               // reads a core file; nil: read the live process
	live   symbolize.MemoryReader               // reads the live process; nil: not made yet

	// FirstInImage is set during a walk if no earlier walk had its innermost frame in the same image.
	FirstInImage bool

	Files  *symbolize.Deadline // for reading files; nil: no deadline
	Unread string              // an image that was not read by the deadline, so that frames are missing

	Generated JITCode
	later     *Later // of the process; nil: its start time is unknown
	readLater bool   // see ReadLater
	samples   bool
	llvm      *bool           // whether the process has loaded LLVM; nil: not examined
	perf      *symbol.PerfMap // of the process; nil: none, or not read yet (perfRead)
	perfRead  bool
	last      *process.Mapping // the result of the last Lookup
	lastFound symbolize.Placed
}

// Find returns the module whose executable mapping contains addr.
func (sp *Space) Find(addr uint64) (unwind.Module, bool) {
	m, f, ok := sp.Lookup(addr)
	if !ok {
		return unwind.Module{}, false
	}
	if f.Module == nil {
		return unwind.Module{CFI: sp.Generated.TableAt(sp.JIT(), m, addr)}, true
	}
	table, ok := f.Module.Table(sp.Files)
	golang, also := f.Module.GoTable(sp.Files)
	start, linker, known := f.Module.Start(sp.Files)
	if !ok || !also || !known {
		sp.Unread = f.Module.Name
		return unwind.Module{}, false
	}
	return unwind.Module{Bias: f.Bias, CFI: table, Go: golang, Code: f.Module.Image,
		Start: start, Linker: linker, CodeCache: &f.Module.CodeCache}, true
}

// ReadLater makes the space read generated code from the live process, if the copied memory does not have call frame
// information for it. The parameter samples is set for stacks that the kernel has copied some time ago: the mappings
// may have changed since.
func (sp *Space) ReadLater(samples bool) {
	sp.readLater = sp.later != nil && sp.Memory == nil
	sp.samples = samples
	sp.Generated.Disabled = sp.Generated.Disabled || samples
}

// Candidates implements unwind.Candidates.
func (sp *Space) Candidates(addr uint64, search bool) []unwind.Candidate {
	if !sp.readLater || sp.inFile(addr) {
		return nil
	}
	// If the mappings show no compiler, only known candidates are returned.
	return sp.later.At(addr, search && sp.compiles())
}

// lowest is the first address that a process can use on Linux by default (vm.mmap_min_addr). A jump to a lower address
// used a bad pointer.
const lowest = 1 << 16

// Frameless implements unwind.Candidates. Code compiled by LLVM keeps no frame pointers, and the process frees it after
// each query.
func (sp *Space) Frameless(addr uint64) bool {
	switch i := sp.Mapping(addr); {
	case sp.inFile(addr) || addr < lowest:
		return false
	case i >= 0 && sp.Maps[i].Perms&process.Exec != 0:
		return sp.loadsLLVM()
	}
	return sp.samples
}

// loadsLLVM reports whether the process has loaded LLVM.
func (sp *Space) loadsLLVM() bool {
	if sp.llvm == nil {
		loads := LoadsLLVM(sp.Maps)
		sp.llvm = &loads
	}
	return *sp.llvm
}

// compiles reports whether the process may compile code at run time.
func (sp *Space) compiles() bool {
	return sp.loadsLLVM() || slices.ContainsFunc(sp.Maps, func(m process.Mapping) bool {
		return m.Perms&process.Exec != 0 && m.Inode == 0 && m.Path == ""
	})
}

// inFile reports whether an address lies in a mapping with a file or a name.
func (sp *Space) inFile(addr uint64) bool {
	i := sp.Mapping(addr)
	return i >= 0 && (sp.Maps[i].Inode != 0 || sp.Maps[i].Path != "")
}

// Lookup returns the executable mapping that contains addr, and its image.
func (sp *Space) Lookup(addr uint64) (*process.Mapping, symbolize.Placed, bool) {
	if m := sp.last; m != nil && addr >= m.Start && addr < m.End {
		return m, sp.lastFound, true
	}
	i := sp.Mapping(addr)
	if i < 0 || sp.Maps[i].Perms&process.Exec == 0 {
		return nil, symbolize.Placed{}, false
	}
	sp.last, sp.lastFound = &sp.Maps[i], sp.Resolve(i)
	return sp.last, sp.lastFound, true
}

// Mapping returns the index of the mapping that contains addr, or -1.
func (sp *Space) Mapping(addr uint64) int { return process.IndexOf(sp.Maps, addr) }

// AllMapped reports whether all frames lie in mappings. For samples it returns true: the process may have unmapped code
// compiled at run time since.
func (sp *Space) AllMapped(frames []unwind.Frame) bool {
	return sp.samples || !slices.ContainsFunc(frames, func(f unwind.Frame) bool { return sp.Mapping(f.Lookup()) < 0 })
}

// JIT returns the facts about the process that the search for generated code needs.
func (sp *Space) JIT() *JITProcess {
	return &JITProcess{Arch: sp.cache.images.Arch, Maps: sp.Maps, Descriptors: sp.Descriptors}
}

// Mapped reports whether the process has readable memory at addr.
func (sp *Space) Mapped(addr uint64) bool {
	i := sp.Mapping(addr)
	return i >= 0 && sp.Maps[i].Perms&process.Read != 0
}

// Resolve returns the image of a mapping, by its index.
func (sp *Space) Resolve(i int) symbolize.Placed {
	m := sp.Maps[i]
	sp.cache.mu.Lock()
	f, ok := sp.Known[m]
	if ok && f.Module != nil {
		f.Module = f.Module.Latest()
		sp.Known[m] = f
	}
	sp.cache.mu.Unlock()
	if ok {
		return f
	}
	f = sp.lookUpImage(i)
	if f.Module == nil {
		// This result is not cached: the image may be readable next time.
		return f
	}
	sp.cache.mu.Lock()
	sp.Known[m] = f
	sp.cache.mu.Unlock()
	return f
}

// lookUpImage looks up the image of a mapping. Placed.Module is nil if the mapping has no image, if the image was not
// found by the deadline, or if too many lookups are in progress.
func (sp *Space) lookUpImage(i int) symbolize.Placed {
	s, q := sp.cache, mappingKey{sp.key, sp.Maps[i]}
	s.mu.Lock()
	p := s.lookups[q]
	if p == nil && len(s.lookups) >= maxLookups {
		s.mu.Unlock()
		sp.Unread = symbolize.ModuleName(sp.Maps[i].Path)
		return symbolize.Placed{}
	}
	if p == nil {
		p = &symbolize.Lazy[symbolize.Placed]{}
		s.lookups[q] = p
	}
	s.mu.Unlock()
	f, ok := p.Get(sp.Files, s.images.Sources.Warn, func() symbolize.Placed {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.lookups, q)
		}()
		return s.images.Mapped(sp.pid, sp.Maps, i)
	})
	if !ok {
		sp.Unread = symbolize.ModuleName(sp.Maps[i].Path)
	}
	return f
}

// IsGo reports whether an image has the function table of a Go program.
func (sp *Space) IsGo(m *symbolize.Module) bool {
	t, _ := m.GoTable(sp.Files)
	return t != nil
}

// Descriptors returns the addresses of the variables of GDB's JIT interface at which lists of objects begin.
func (sp *Space) Descriptors() []uint64 {
	var found []uint64
	for i := range sp.Maps {
		m := &sp.Maps[i]
		if m.Perms&process.Exec == 0 || m.Inode == 0 {
			continue
		}
		if f := sp.Resolve(i); f.Module != nil {
			if d := f.Module.JitDescriptor(); d != 0 && !slices.Contains(found, d+f.Bias) {
				found = append(found, d+f.Bias)
			}
		}
	}
	return found
}

// Reader returns a reader of the process's current memory, or of the memory in a core file.
func (sp *Space) Reader() symbolize.MemoryReader {
	if sp.Memory != nil {
		return sp.Memory
	}
	if sp.live == nil {
		sp.live = symbolize.LiveMemory(sp.pid)
	}
	return sp.live
}

// ReadAll fills b with the process's memory. It returns false if it cannot read all of it.
func (sp *Space) ReadAll(addr uint64, b []byte) bool { return sp.Reader().Exactly(addr, b) }
