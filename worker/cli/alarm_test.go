package cli

import (
	"context"
	"testing"
	"time"
)

// TestAlarm: it waits as long as it is to, again and again, and not for one that has been cancelled.
func TestAlarm(t *testing.T) {
	clock, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer clock.close()
	ctx, cancel := context.WithCancel(t.Context())
	for _, d := range []time.Duration{3 * time.Millisecond, time.Nanosecond, 0, -time.Second, 20 * time.Millisecond} {
		began := time.Now()
		if !clock.wait(ctx, d) {
			t.Fatalf("%v: cancelled", d)
		}
		if took := time.Since(began); took < d {
			t.Errorf("%v: rang after %v", d, took)
		}
	}
	go cancel()
	if clock.wait(ctx, time.Hour) {
		t.Error("cancelled: it rang")
	}
	if clock.wait(ctx, 0) || clock.wait(ctx, time.Nanosecond) {
		t.Error("rang after it was cancelled")
	}
}
