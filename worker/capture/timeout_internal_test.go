package capture

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPlaceOfALateCapture checks that a blocked capture releases its place once.
func TestPlaceOfALateCapture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Concurrency: 1})
		if err != nil {
			t.Fatal(err)
		}
		late, err := c.acquire(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		next, err := c.acquire(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		late()
		if c.limit.TryAcquire(1) {
			t.Error("its place was given away twice")
		}
		next()
		if !c.limit.TryAcquire(1) {
			t.Error("the next one's place is lost")
		}
	})
}
