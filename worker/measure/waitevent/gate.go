package waitevent

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/sync/semaphore"
)

// ErrBusy means that another request about wait events takes long.
var ErrBusy = errors.New("another request about wait events, or the start of their timing, takes long")

const (
	// gateTimeout is how long a request waits for others.
	gateTimeout = 2 * time.Second
	// gateTurn is how long the regular work of a Timer waits for requests. New readers wait behind it.
	gateTurn = 50 * time.Millisecond
)

// gate admits several readers or one change, in the order in which they come. It bounds the time that they wait, so that
// a slow request does not hold up others.
type gate struct{ places *semaphore.Weighted }

const places = math.MaxInt32 // each reader takes one, a change all

func newGate() gate { return gate{semaphore.NewWeighted(places)} }

// read admits a reader.
func (g gate) read() (done func(), err error) { return g.take(1, gateTimeout) }

// change admits a change.
func (g gate) change() (done func(), err error) { return g.take(places, gateTimeout) }

// turn admits the regular work.
func (g gate) turn() (done func(), err error) { return g.take(places, gateTurn) }

// take returns ErrBusy after a time.
func (g gate) take(n int64, most time.Duration) (done func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if g.places.Acquire(ctx, n) != nil {
		return nil, ErrBusy
	}
	return func() { g.places.Release(n) }, nil
}
