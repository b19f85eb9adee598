package web

import (
	"context"
	"hash/maphash"
	"time"

	"pg_stat_backtrace/worker/limits"
)

// newTurns returns the places of requests that are answered at a time. One source (see the type source) can have a part of them, so
// that it cannot keep the requests of other clients away.
func newTurns(most int) *limits.Gate {
	return limits.NewGate(limits.Shares{Total: int64(most), Ordinary: int64(most), Role: int64(most / sharesOfSources)})
}

// sourceSeed makes the numbers of sources differ between processes, so that no client can choose the number of another source.
var sourceSeed = maphash.MakeSeed()

// takeTurn takes a place for a request of a source. It waits for a free place, and returns false if none is free within the time
// most, or if ctx ends. The caller must call give at the end of the request.
func takeTurn(ctx context.Context, turns *limits.Gate, of source, most time.Duration) (give func(), ok bool) {
	who := limits.Who{Role: uint32(maphash.Comparable(sourceSeed, of))}
	if most <= 0 {
		return turns.Try(who, 1)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	give, err := turns.Acquire(ctx, who, 1)
	return give, err == nil
}
