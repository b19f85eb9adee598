package waitevent

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/sync/semaphore"
)

// ErrBusy means that a request was refused because another one took longer than gateTimeout.
var ErrBusy = errors.New("another request about wait events, or the start of their timing, takes long")

const (
	// gateTimeout is the longest time for which a request waits for other requests.
	gateTimeout = 2 * time.Second
	// gateTurn is the longest time for which the regular work of a Timer waits for requests. New readers wait during this time too.
	gateTurn = 50 * time.Millisecond
)

// gate is a lock for several readers or one change, in the order of their calls. It bounds the time for which they wait, so that
// a slow request does not block others for long.
type gate struct{ places *semaphore.Weighted }

const places = math.MaxInt32 // a reader takes one place, a change takes all

func newGate() gate { return gate{semaphore.NewWeighted(places)} }

// read locks the gate for a reader. The caller must call done. The error is ErrBusy.
func (g gate) read() (done func(), err error) { return g.take(1, gateTimeout) }

// change locks the gate for a change. The caller must call done. The error is ErrBusy.
func (g gate) change() (done func(), err error) { return g.take(places, gateTimeout) }

// turn locks the gate for the regular work of a Timer, which is a change. It waits only for gateTurn.
func (g gate) turn() (done func(), err error) { return g.take(places, gateTurn) }

// take takes n places. It returns ErrBusy if it does not get them within the time most.
func (g gate) take(n int64, most time.Duration) (done func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if g.places.Acquire(ctx, n) != nil {
		return nil, ErrBusy
	}
	return func() { g.places.Release(n) }, nil
}
