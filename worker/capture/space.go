package capture

import (
	"slices"
	"sync"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/jit"
)

// maxSpaces bounds the processes that are remembered.
const maxSpaces = 2048

// maxSought bounds the images that are looked for at a time. Each takes a thread as long as its disk does not answer:
// there are many processes that have the same file, and a program that may have no more threads ends.
const maxSought = 64

// processKey knows a process for good: its pid may be used again, but not with
// the same start time.
type processKey struct {
	pid       int
	startTime uint64
}

// spaces remembers for each process which image each mapping holds, so that a
// repeated capture asks the process nothing.
type spaces struct {
	images *images
	perf   perfMaps
	mu     sync.Mutex
	byKey  map[processKey]map[procfs.Mapping]found
	// sought are the mappings whose images are being looked for.
	sought map[mappingKey]*lazy[found]
}

// mappingKey is a mapping of a process.
type mappingKey struct {
	process processKey
	mapping procfs.Mapping
}

func newSpaces(imgs *images) *spaces {
	return &spaces{
		images: imgs, byKey: make(map[processKey]map[procfs.Mapping]found), sought: make(map[mappingKey]*lazy[found]),
	}
}

// open returns the address space that a snapshot's maps describe. A start time
// of 0 means that the process is not known for sure: nothing is remembered.
func (s *spaces) open(pid int, startTime uint64, maps []procfs.Mapping) *space {
	sp := &space{spaces: s, key: processKey{pid, startTime}, pid: pid, maps: maps}
	if startTime == 0 {
		sp.known = make(map[procfs.Mapping]found)
		return sp
	}
	key := processKey{pid, startTime}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.byKey[key]
	if known == nil {
		if len(s.byKey) >= maxSpaces {
			for k := range s.byKey {
				delete(s.byKey, k)
				break
			}
		}
		known = make(map[procfs.Mapping]found)
		s.byKey[key] = known
	}
	sp.known = known
	return sp
}

// forget drops what is remembered of a process.
func (s *spaces) forget(key processKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}

// space is the executable part of one process's address space at the time of
// a snapshot. It implements unwind.Modules, for one goroutine.
type space struct {
	spaces *spaces
	key    processKey
	pid    int
	maps   []procfs.Mapping
	known  map[procfs.Mapping]found // shared, under spaces.mu
	memory byteReader               // of a core file; nil: of the process as it is now

	// unfamiliar is set while a stack is unwound whose innermost frame is in an image in which none has been before.
	unfamiliar bool

	files  *deadline // for what must be read from files; nil: never
	unread string    // an image that was not read by then, so that there is less of the stack than there could be

	generated generated
	perf      *jit.PerfMap // of the process; nil: none, or not read yet
	perfRead  bool
	last      *procfs.Mapping // the mapping found last, and what it holds
	lastFound found
}

// Find returns the module whose executable mapping holds addr.
func (sp *space) Find(addr uint64) (unwind.Module, bool) {
	m, f, ok := sp.find(addr)
	if !ok {
		return unwind.Module{}, false
	}
	if f.module == nil {
		return unwind.Module{CFI: sp.generated.tableAt(sp.jit(), m, addr)}, true
	}
	table, ok := f.module.table(sp.files)
	golang, also := f.module.goTable(sp.files)
	start, linker, known := f.module.start(sp.files)
	if !ok || !also || !known {
		sp.unread = f.module.name
		return unwind.Module{}, false
	}
	return unwind.Module{Bias: f.bias, CFI: table, Go: golang, Code: f.module.image,
		Start: start, Linker: linker, CodeCache: &f.module.told}, true
}

func (sp *space) find(addr uint64) (*procfs.Mapping, found, bool) {
	if m := sp.last; m != nil && addr >= m.Start && addr < m.End {
		return m, sp.lastFound, true
	}
	i := sp.mapping(addr)
	if i < 0 || sp.maps[i].Perms&procfs.Exec == 0 {
		return nil, found{}, false
	}
	sp.last, sp.lastFound = &sp.maps[i], sp.resolve(i)
	return sp.last, sp.lastFound, true
}

// mapping returns the index of the mapping that holds addr, or -1.
func (sp *space) mapping(addr uint64) int { return procfs.IndexOf(sp.maps, addr) }

// jit is what the search for generated code must know of the process.
func (sp *space) jit() *jitProcess {
	return &jitProcess{arch: sp.spaces.images.arch, maps: sp.maps, descriptors: sp.descriptors}
}

// mapped reports whether the process has readable memory at addr.
func (sp *space) mapped(addr uint64) bool {
	i := sp.mapping(addr)
	return i >= 0 && sp.maps[i].Perms&procfs.Read != 0
}

func (sp *space) resolve(i int) found {
	m := sp.maps[i]
	sp.spaces.mu.Lock()
	f, ok := sp.known[m]
	if ok && f.module != nil {
		f.module = f.module.latest()
		sp.known[m] = f
	}
	sp.spaces.mu.Unlock()
	if ok {
		return f
	}
	f = sp.seek(i)
	if f.module == nil {
		// Not remembered: it may be readable next time.
		return f
	}
	sp.spaces.mu.Lock()
	sp.known[m] = f
	sp.spaces.mu.Unlock()
	return f
}

// seek looks for the image of a mapping; there is no module if there is none, or it was not found by the deadline, or
// too many are being looked for.
func (sp *space) seek(i int) found {
	s, q := sp.spaces, mappingKey{sp.key, sp.maps[i]}
	s.mu.Lock()
	p := s.sought[q]
	if p == nil && len(s.sought) >= maxSought {
		s.mu.Unlock()
		sp.unread = moduleName(sp.maps[i].Path)
		return found{}
	}
	if p == nil {
		p = &lazy[found]{}
		s.sought[q] = p
	}
	s.mu.Unlock()
	f, ok := p.get(sp.files, s.images.shared.tell, func() found {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.sought, q)
		}()
		return s.images.mapped(sp.pid, sp.maps, i)
	})
	if !ok {
		sp.unread = moduleName(sp.maps[i].Path)
	}
	return f
}

// isGo says that an image has such a table.
func (sp *space) isGo(m *module) bool {
	t, _ := m.goTable(sp.files)
	return t != nil
}

// descriptors returns the addresses of the variables at which lists of registered objects begin.
func (sp *space) descriptors() []uint64 {
	var found []uint64
	for i := range sp.maps {
		m := &sp.maps[i]
		if m.Perms&procfs.Exec == 0 || m.Inode == 0 {
			continue
		}
		if f := sp.resolve(i); f.module != nil {
			if d := f.module.jitDescriptor(); d != 0 && !slices.Contains(found, d+f.bias) {
				found = append(found, d+f.bias)
			}
		}
	}
	return found
}

// reader reads the process's memory as it is now, or as a core file has it.
func (sp *space) reader() byteReader {
	if sp.memory != nil {
		return sp.memory
	}
	return processReader(sp.pid)
}

// readAll fills b with the process's memory.
func (sp *space) readAll(addr uint64, b []byte) bool { return sp.reader().exactly(addr, b) }
