package unwind

import "sync"

// Told remembers what the instructions of one image have told, by address in
// it. The zero value is empty, and it is safe for concurrent use.
type Told struct {
	mu     sync.Mutex
	byAddr map[uint64]distances
	back   map[uint64]bool
}

// distances are those of the stack pointer from the CFA that are possible at
// an address, or why none is known.
type distances struct {
	possible []int64
	err      error
}

// maxTold bounds the addresses that are remembered of an image; the calls in
// which a server sleeps lead through some hundreds.
const maxTold = 1024

func (d *Told) find(addr uint64) (found distances, known bool) {
	if d == nil {
		return found, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	found, known = d.byAddr[addr]
	return found, known
}

func (d *Told) keep(addr uint64, found distances) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byAddr == nil || len(d.byAddr) >= maxTold {
		d.byAddr = make(map[uint64]distances)
	}
	d.byAddr[addr] = found
}

// returns is whether the function that begins at an address may return.
func (d *Told) returns(entry uint64) (returns, known bool) {
	if d == nil {
		return false, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	returns, known = d.back[entry]
	return returns, known
}

func (d *Told) keepReturns(entry uint64, returns bool) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.back == nil || len(d.back) >= maxTold {
		d.back = make(map[uint64]bool)
	}
	d.back[entry] = returns
}
