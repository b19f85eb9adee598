package unwind

import (
	"sync"

	"pg_stat_backtrace/unwind/codeflow"
)

// CodeCache caches the results of decoding the instructions of one image, by link-time address. The zero value is empty
// and safe for concurrent use. A nil CodeCache stores nothing.
type CodeCache struct {
	mu     sync.Mutex
	byAddr map[uint64]distances
	back   map[uint64]bool
	met    map[codeflow.Place]bool
	rows   map[codeflow.Place]*codeflow.Row
	calls  map[uint64]trialResult
}

// distances are the possible distances from the stack pointer to the CFA at an address, or the reason why they are
// unknown.
type distances struct {
	possible []int64
	err      error
}

// maxTold limits the number of addresses in each map of a CodeCache. The calls in which a server sleeps pass through
// some hundreds of addresses.
const maxTold = 1024

func (d *CodeCache) find(addr uint64) (found distances, known bool) {
	if d == nil {
		return found, false
	}
	return recall(&d.mu, &d.byAddr, addr)
}

func (d *CodeCache) keep(addr uint64, found distances) {
	if d != nil {
		remember(&d.mu, &d.byAddr, addr, found)
	}
}

// returns looks up whether the function that begins at entry may return. known is false if the cache does not contain
// the answer.
func (d *CodeCache) returns(entry uint64) (returns, known bool) {
	if d == nil {
		return false, false
	}
	return recall(&d.mu, &d.back, entry)
}

func (d *CodeCache) keepReturns(entry uint64, returns bool) {
	if d != nil {
		remember(&d.mu, &d.back, entry, returns)
	}
}

// row returns the cached row of a place: how the code from there on changes the registers. known is false if the cache
// does not contain the answer. If known is true and the row is nil, the place has no row, because the changes differ
// between frames.
func (d *CodeCache) row(at codeflow.Place) (row *codeflow.Row, known bool) {
	if d == nil {
		return nil, false
	}
	return recall(&d.mu, &d.rows, at)
}

// again reports whether the code that begins at a place was followed before, and records that it is followed now.
func (d *CodeCache) again(at codeflow.Place) bool {
	if d == nil {
		return false
	}
	_, met := recall(&d.mu, &d.met, at)
	if !met {
		remember(&d.mu, &d.met, at, true)
	}
	return met
}

func (d *CodeCache) keepRow(at codeflow.Place, row *codeflow.Row) {
	remember(&d.mu, &d.rows, at, row)
}

// called returns the cached result whether the instruction before an address is a call.
func (d *CodeCache) called(addr uint64) (called trialResult, known bool) {
	if d == nil {
		return undecided, false
	}
	return recall(&d.mu, &d.calls, addr)
}

// keepCalled stores whether the instruction before an address is a call. It returns the result as proven or refuted.
func (d *CodeCache) keepCalled(addr uint64, called bool) trialResult {
	v := refuted
	if called {
		v = proven
	}
	if d != nil {
		remember(&d.mu, &d.calls, addr, v)
	}
	return v
}

func recall[K comparable, V any](mu *sync.Mutex, m *map[K]V, at K) (V, bool) {
	mu.Lock()
	defer mu.Unlock()
	v, known := (*m)[at]
	return v, known
}

// remember stores a value. If the map is full, remember first removes all its values.
func remember[K comparable, V any](mu *sync.Mutex, m *map[K]V, at K, v V) {
	mu.Lock()
	defer mu.Unlock()
	if *m == nil || len(*m) >= maxTold {
		*m = make(map[K]V)
	}
	(*m)[at] = v
}
