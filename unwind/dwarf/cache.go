package dwarf

import (
	"container/list"
	"errors"
	"sync"

	"pg_stat_backtrace/unwind/budget"
)

// DefaultCacheSize is the default budget of a Cache in bytes: enough for about two hundred compilation units.
const DefaultCacheSize = 12 << 20

// Cache keeps decoded data of compilation units, of any number of files. If the data exceeds the cache's budget, the
// least recently used entries are removed. A Cache is safe for concurrent use, and decodes each entry once.
type Cache struct {
	mu     sync.Mutex
	budget int
	used   int
	byKey  map[cacheKey]*cached
	order  *list.List // of *cached, the last used one first
}

// NewCache makes a cache with a budget in bytes; 0 means DefaultCacheSize.
func NewCache(budget int) *Cache {
	if budget <= 0 {
		budget = DefaultCacheSize
	}
	return &Cache{budget: budget, byKey: make(map[cacheKey]*cached), order: list.New()}
}

// cacheKind is the kind of a cached object. Objects of different kinds may have the same offset.
type cacheKind uint8

const (
	cachedAbbrevs cacheKind = iota
	cachedFunctions
	cachedLines
	cachedSection
	cachedSplit
	cachedUnit
)

// cacheKey identifies a decoded object of a file.
type cacheKey struct {
	owner *Data
	kind  cacheKind
	off   uint64
}

// cached is one entry of a Cache. It also keeps the error of decoding, so that a damaged unit is not decoded
// repeatedly.
type cached struct {
	key  cacheKey
	once sync.Once
	at   *list.Element
	// size is 0 until the value was decoded; guarded by Cache.mu.
	size  int
	value any
	err   error
}

// overhead is the memory of an entry in bytes without its value.
const overhead = 256

// get returns the value for the key. If the value is missing, the callback decode creates it and returns its size in
// bytes.
func (c *Cache) get(key cacheKey, decode func() (any, int, error)) (any, error) {
	e := c.entry(key)
	e.once.Do(func() {
		var size int
		e.value, size, e.err = decode()
		c.account(e, size+overhead)
		if errors.Is(e.err, budget.ErrExceeded) {
			c.drop(e) // a later look-up may have enough budget
		}
	})
	return e.value, e.err
}

// entry finds or makes an entry, and moves it to the front of the list order.
func (c *Cache) entry(key cacheKey) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[key]; e != nil {
		c.order.MoveToFront(e.at)
		return e
	}
	e := &cached{key: key}
	e.at = c.order.PushFront(e)
	c.byKey[key] = e
	return e
}

// account adds the size of a new entry. If the entries exceed the budget, it removes the least recently used ones. It
// keeps the new entry, even if this alone exceeds the budget, and entries that are still being decoded.
func (c *Cache) account(made *cached, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made.size = size
	c.used += size
	for at := c.order.Back(); at != nil && c.used > c.budget; {
		e, _ := at.Value.(*cached)
		at = at.Prev()
		if e == made || e.size == 0 {
			continue
		}
		c.used -= e.size
		c.order.Remove(e.at)
		delete(c.byKey, e.key)
	}
}

// drop removes an entry.
func (c *Cache) drop(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[e.key] == e {
		c.used -= e.size
		c.order.Remove(e.at)
		delete(c.byKey, e.key)
	}
}

// Used returns the size of the cached entries in bytes, as estimated when they were decoded.
func (c *Cache) Used() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// cachedAs is like Cache.get, but for values of type T.
func cachedAs[T any](c *Cache, key cacheKey, decode func() (T, int, error)) (T, error) {
	v, err := c.get(key, func() (any, int, error) { return decode() })
	t, _ := v.(T)
	return t, err
}
