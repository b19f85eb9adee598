package naming

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// maxProcesses bounds the processes in a cache, at about 12 kB each. When the cache is full, a random process is
// dropped. So a caller that captures more processes than this, one after another, still finds most of them.
const maxProcesses = 2048

// maxLookups bounds the image lookups that run at the same time. Each lookup blocks a thread as long as its disk does
// not respond. Many processes may have the same file, and a Go program that exceeds its thread limit ends.
const maxLookups = 64

// ProcessKey identifies a process. The kernel may reuse a pid, but not with the same start time.
type ProcessKey struct {
	PID       int
	StartTime uint64
}

// A Cache keeps facts about processes: their mappings, the image of each mapping, and facts of other packages. A
// repeated capture then reads none of this again. It is safe for concurrent use.
type Cache struct {
	images *symbolize.Cache
	perf   PerfMaps
	later  LaterStore

	mu    sync.Mutex
	byKey map[ProcessKey]*cacheEntry
	paths map[string]string // one copy of each path of a mapping
	// lookups has the image lookups in progress, by mapping.
	lookups map[mappingKey]*symbolize.Lazy[symbolize.Placed]
}

// cacheEntry is the data of one process.
type cacheEntry struct {
	images map[process.Mapping]symbolize.Placed
	maps   *KnownMaps // nil: not read yet
	later  *Later
	facts  map[any]any // the facts of other packages; the key is the address of the Fact
}

// mappingKey identifies a mapping of a process.
type mappingKey struct {
	process ProcessKey
	mapping process.Mapping
}

// NewCache returns an empty cache of processes whose images come from the given cache.
func NewCache(images *symbolize.Cache) *Cache {
	return &Cache{
		images: images, byKey: make(map[ProcessKey]*cacheEntry), paths: make(map[string]string),
		lookups: make(map[mappingKey]*symbolize.Lazy[symbolize.Placed]),
		later:   LaterStore{Arch: images.Arch},
	}
}

// entry returns the entry of a process, and adds an empty one if there is none. The caller has locked mu.
func (c *Cache) entry(key ProcessKey) *cacheEntry {
	p := c.byKey[key]
	if p == nil {
		if len(c.byKey) >= maxProcesses {
			for k, other := range c.byKey {
				c.later.Drop(other.later)
				delete(c.byKey, k)
				break
			}
		}
		p = &cacheEntry{images: make(map[process.Mapping]symbolize.Placed), later: c.later.Of(key.PID, key.StartTime)}
		c.byKey[key] = p
	}
	return p
}

// Open returns the address space described by the mappings of a snapshot. With a start time of 0 the process is not
// identified, and nothing is cached.
func (c *Cache) Open(pid int, startTime uint64, maps []process.Mapping) *Space {
	sp := &Space{cache: c, key: ProcessKey{pid, startTime}, pid: pid, Maps: maps}
	if startTime == 0 {
		sp.Known = make(map[process.Mapping]symbolize.Placed)
		return sp
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.entry(sp.key)
	sp.Known, sp.later = p.images, p.later
	return sp
}

// WatchGenerated makes the cache read the code that processes compile at run time, as long as stacks of samples need
// it: see LaterStore.Watch. The caller must call end.
func (c *Cache) WatchGenerated() (end func()) { return c.later.Watch() }

// ForgetMaps drops the mappings of a process, and their images.
func (c *Cache) ForgetMaps(key ProcessKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byKey[key]; p != nil {
		p.images, p.maps = make(map[process.Mapping]symbolize.Placed), nil
	}
}

// KnownMaps has the mappings of one process. All fields except the field kept are immutable once the KnownMaps is in
// the cache.
type KnownMaps struct {
	Snapshot *snapshot.MapsSnapshot
	maps     []process.Mapping
	used     []Usage // the mappings in which the last walk had frames, sorted by index

	kept atomic.Int64 // when the last capture that used them began, Unix time in ns
}

// Maps returns the cached mappings of a process, or nil. Without the cache, reading the mappings would take longer than
// all other parts of a capture together. A capture compares the cached mappings that it uses with those of the live
// process (see Check). It compares the mappings of the last walk before the stop, and the other mappings after the
// stop.
func (c *Cache) Maps(key ProcessKey) *KnownMaps {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byKey[key]; p != nil {
		return p.maps
	}
	return nil
}

// KeepMaps caches the mappings that a capture has read. The parameter used lists the mappings in which its walks had
// frames, and began is the time at which the capture began.
func (c *Cache) KeepMaps(key ProcessKey, snap *snapshot.Snapshot, used []Usage, began time.Time) {
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

// share copies mappings so that equal paths share one string. The strings of a snapshot refer to the whole text of
// its maps file, which then cannot be freed.
func (c *Cache) share(maps []process.Mapping) []process.Mapping {
	const most = 8192 // paths; a server has some dozens
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

// A Fact is a kind of fact about processes that another package keeps in a Cache. The address of the Fact identifies
// the kind. When the cache drops a process, it drops the facts about the process too.
type Fact[T any] struct{ _ byte }

// Of returns the fact about a process. ok is false if the cache has none.
func (f *Fact[T]) Of(c *Cache, key ProcessKey) (fact T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byKey[key]; p != nil {
		fact, ok = p.facts[f].(T)
	}
	return fact, ok
}

// Keep stores a fact about a process, unless its start time is 0.
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
