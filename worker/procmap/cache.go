package procmap

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/worker/jitcode"
	"pg_stat_backtrace/worker/symbolize"
)

// maxProcesses bounds the processes that a cache remembers, at about 12 kB each. Any of them makes room for a new one:
// a caller that asks for more processes than that, one after the other, then still finds most of them.
const maxProcesses = 2048

// maxSought bounds the images that are looked for at a time. Each takes a thread as long as its disk does not answer:
// there are many processes that have the same file, and a program that may have no more threads ends.
const maxSought = 64

// ProcessKey knows a process for good: its pid may be used again, but not with
// the same start time.
type ProcessKey struct {
	PID       int
	StartTime uint64
}

// A Cache remembers processes: their mappings, which image each mapping holds, and facts of other packages. A repeated
// capture then asks the process nothing. It is safe for concurrent use.
type Cache struct {
	images *symbolize.Cache
	perf   jitcode.PerfMaps

	mu    sync.Mutex
	byKey map[ProcessKey]*process
	paths map[string]string // one copy of each path of a mapping
	// sought are the mappings whose images are being looked for.
	sought map[mappingKey]*symbolize.Lazy[symbolize.Placed]
}

// process is what is known of one process.
type process struct {
	images map[procfs.Mapping]symbolize.Placed
	maps   *KnownMaps  // nil: not known
	facts  map[any]any // by the address of their Fact
}

// mappingKey is a mapping of a process.
type mappingKey struct {
	process ProcessKey
	mapping procfs.Mapping
}

// NewCache returns an empty cache of processes that run these images.
func NewCache(images *symbolize.Cache) *Cache {
	return &Cache{
		images: images, byKey: make(map[ProcessKey]*process), paths: make(map[string]string),
		sought: make(map[mappingKey]*symbolize.Lazy[symbolize.Placed]),
	}
}

// entry returns what is known of a process, which is nothing the first time. The caller has locked mu.
func (c *Cache) entry(key ProcessKey) *process {
	p := c.byKey[key]
	if p == nil {
		if len(c.byKey) >= maxProcesses {
			for k := range c.byKey {
				delete(c.byKey, k)
				break
			}
		}
		p = &process{images: make(map[procfs.Mapping]symbolize.Placed)}
		c.byKey[key] = p
	}
	return p
}

// Open returns the address space that a snapshot's maps describe. A start time
// of 0 means that the process is not known for sure: nothing is remembered.
func (c *Cache) Open(pid int, startTime uint64, maps []procfs.Mapping) *Space {
	sp := &Space{cache: c, key: ProcessKey{pid, startTime}, pid: pid, Maps: maps}
	if startTime == 0 {
		sp.Known = make(map[procfs.Mapping]symbolize.Placed)
		return sp
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sp.Known = c.entry(sp.key).images
	return sp
}

// ForgetMaps drops the mappings of a process, and their images.
func (c *Cache) ForgetMaps(key ProcessKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byKey[key]; p != nil {
		p.images, p.maps = make(map[procfs.Mapping]symbolize.Placed), nil
	}
}

// KnownMaps is the mappings of one process. All but kept is immutable once the cache has it.
type KnownMaps struct {
	Snapshot *ptrace.MapsSnapshot
	maps     []procfs.Mapping
	used     []Usage // the mappings that the last walk went through, in order

	kept atomic.Int64 // when the last capture that it served began, Unix time in ns
}

// Maps returns the mappings of a process, or nil. They take longer to read than everything else of a capture together.
// What a capture uses of them is compared with the process every time (Check): the mappings that its last walk went
// through before the process is stopped, others after it.
func (c *Cache) Maps(key ProcessKey) *KnownMaps {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byKey[key]; p != nil {
		return p.maps
	}
	return nil
}

// KeepMaps remembers the mappings that a capture has read, which began then, and through which of them its walks went.
func (c *Cache) KeepMaps(key ProcessKey, snap *ptrace.Snapshot, used []Usage, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.entry(key)
	old := p.maps
	switch {
	case old == nil || len(old.maps) == 0 || &old.maps[0] != &snap.Maps[0]:
		maps := c.share(snap.Maps)
		p.maps = &KnownMaps{Snapshot: snap.MapsSnapshot.WithMaps(maps), maps: maps, used: used}
	case !slices.Equal(old.used, used):
		p.maps = &KnownMaps{Snapshot: old.Snapshot, maps: old.maps, used: used}
	}
	p.maps.kept.Store(began.UnixNano())
}

// share copies mappings so that equal paths are the same string: those of a snapshot hold the whole text of its maps.
func (c *Cache) share(maps []procfs.Mapping) []procfs.Mapping {
	const most = 8192 // paths; servers have some dozens
	if len(c.paths) > most {
		clear(c.paths)
	}
	shared := slices.Clone(maps)
	for i := range shared {
		p, known := c.paths[shared[i].Path]
		if !known {
			p = strings.Clone(shared[i].Path)
			c.paths[p] = p
		}
		shared[i].Path = p
	}
	return shared
}

// A Fact is a kind of knowledge about processes that another package keeps in a Cache. Its address identifies it. The
// cache drops a fact together with all else that it knows of the process.
type Fact[T any] struct{ _ byte }

// Of returns the fact about a process; false if there is none.
func (f *Fact[T]) Of(c *Cache, key ProcessKey) (fact T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byKey[key]; p != nil {
		fact, ok = p.facts[f].(T)
	}
	return fact, ok
}

// Keep remembers a fact about a process, unless its start time is 0.
func (f *Fact[T]) Keep(c *Cache, key ProcessKey, fact T) {
	if key.StartTime == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.entry(key)
	if p.facts == nil {
		p.facts = make(map[any]any)
	}
	p.facts[f] = fact
}
