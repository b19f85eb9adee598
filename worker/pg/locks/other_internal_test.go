package locks

import (
	"testing"

	"pg_stat_backtrace/worker/pg/levels"
)

const (
	oldestMajor = 14
	newestMajor = 19
)

// TestKindOfBufferWaits: only the wait for a page without pins is a wait for a buffer pin. The locks of buffers, which have events of
// their own from version 19 on, are lightweight locks.
func TestKindOfBufferWaits(t *testing.T) {
	t.Parallel()
	for major := oldestMajor; major <= newestMajor; major++ {
		names, err := levels.NewWaitNames(major)
		if err != nil {
			t.Fatal(err)
		}
		r, pins := &Reader{names: names}, 0
		const class = 4 << 24
		for event := uint32(class); ; event++ {
			_, name, known := names.Name(event)
			if !known {
				break
			}
			want := LWLock
			if name == "BufferPin" || name == "BufferCleanup" {
				want, pins = BufferPin, pins+1
			}
			if got := r.kind(event); got != want {
				t.Errorf("version %d, %s: %q, want %q", major, name, got, want)
			}
		}
		if pins != 1 {
			t.Errorf("version %d has %d waits for buffer pins", major, pins)
		}
	}
}
