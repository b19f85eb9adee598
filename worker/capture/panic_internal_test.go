package capture

import (
	"errors"
	"os"
	"testing"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/memctx"
)

// TestPanicInMemoryContexts checks that a panic while memory contexts are read is the error of the call.
func TestPanicInMemoryContexts(t *testing.T) {
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer host.InjectPanic(func(string) { panic("injected") })()
	for range 2 { // the second call does not wait for the first
		_, err = c.MemoryContexts(t.Context(), process.Target{PID: os.Getpid(), UID: -1}, memctx.Options{})
		var failed *host.Panic
		if !errors.As(err, &failed) {
			t.Errorf("got %v", err)
		}
	}
}

// TestEqualRightsShareCapture checks that two requests for a process share a capture if they have copies of the same
// rights.
func TestEqualRightsShareCapture(t *testing.T) {
	one, two, other := process.Rights{Permitted: 1}, process.Rights{Permitted: 1}, process.Rights{Permitted: 2}
	key := func(r *process.Rights) requestKey {
		return newRequestKey(process.Target{PID: 1, Rights: r}, Options{MaxFrames: 7})
	}
	if key(&one) != key(&two) || key(&one) == key(&other) || key(nil) == key(&one) {
		t.Error("requests with equal rights differ, or with different rights are equal")
	}
}
