package view

import (
	"testing"
	"time"
)

// TestAfter expects no age for a time in the future, as with a server or worker whose clock is ahead.
func TestAfter(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	for ahead, want := range map[time.Duration]string{
		-2 * time.Second: " for 2.0 s", 0: " for 0 ms", time.Second: " for 0 ms", 1001 * time.Millisecond: "", time.Hour: "",
	} {
		since := at.Add(ahead)
		if got := after(" for ", at, &since); got != want {
			t.Errorf("%s ahead: %q, want %q", ahead, got, want)
		}
	}
	if got := after(" for ", at, nil); got != "" {
		t.Errorf("no time: %q", got)
	}
}
