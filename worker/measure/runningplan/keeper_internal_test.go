package runningplan

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/pg/plan"
)

// TestKeeper: a build is compared once. After a failure the pauses grow, and the store has the reason.
func TestKeeper(t *testing.T) {
	t.Parallel()
	const id, major = "0123456789abcdef", 18
	store := Store{Dir: t.TempDir()}
	var log bytes.Buffer
	k := NewKeeper(store, zerolog.New(&log))
	now := time.Now()
	k.now = func() time.Time { return now }
	failing := func(context.Context) (*Calibration, error) { return nil, errors.New("no slot") }
	for _, pause := range []time.Duration{time.Minute, 4 * time.Minute, 16 * time.Minute, 64 * time.Minute, longestPause, longestPause} {
		if wait := k.Calibrate(id, major, failing); wait != 0 {
			t.Fatalf("no calibration within %s", wait)
		}
		k.running.Wait()
		if wait := k.Calibrate(id, major, failing); wait != pause {
			t.Errorf("after a failure the pause is %s, not %s", wait, pause)
		}
		f := store.LoadFailure(id, major)
		if f == nil || f.Reason != "no slot" || !f.Next.Equal(now.Add(pause)) {
			t.Errorf("the failure is %+v", f)
		}
		now = now.Add(pause)
	}
	other := func(context.Context) (*Calibration, error) {
		return &Calibration{Build: "abcdef0123456789", Major: major, Proof: &plan.Proof{}}, nil
	}
	k.Calibrate(id, major, other)
	k.running.Wait()
	if k.Proof(id, major) != nil || k.Calibrate(id, major, other) != longestPause {
		t.Error("the comparison of another program counts")
	}
	now = now.Add(longestPause)
	begun, end := make(chan bool), make(chan bool)
	k.Calibrate(id, major, func(context.Context) (*Calibration, error) {
		begun <- true
		<-end
		return &Calibration{Build: id, Major: major, Proof: &plan.Proof{Fields: []string{"a"}, Compared: 2}}, nil
	})
	<-begun
	second := func(context.Context) (*Calibration, error) {
		t.Error("a second calibration")
		return nil, errors.New("second")
	}
	k.Calibrate(id, major, second)
	close(end)
	k.running.Wait()
	k.Calibrate(id, major, second)
	k.running.Wait()
	if p := k.Proof(id, major); p == nil || p.Compared != 2 {
		t.Errorf("the proof is %+v", p)
	}
	if !strings.Contains(log.String(), `"proven":1,"compared":2`) {
		t.Errorf("the log has no line about the result: %s", log.String())
	}
	// Another worker of the same user finds the result.
	next := NewKeeper(store, zerolog.Nop())
	next.Calibrate(id, major, second)
	next.running.Wait()
	if next.Proof(id, major) == nil {
		t.Error("the result is not kept")
	}
	next.Stop()
	if next.Calibrate("fedcba9876543210", major, second) != 0 {
		t.Error("a calibration after the end")
	}
	next.running.Wait()
}

// TestStoreDoesNotAnswer: while the disk of the store does not answer, callers get the proofs that the keeper has, the others wait
// only for a moment, and the worker can end. Proofs that the store returns later count.
func TestStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	const id, other, major = "0123456789abcdef", "fedcba9876543210", 18
	const soon = 3 * endWait
	k := NewKeeper(Store{Dir: t.TempDir()}, zerolog.Nop())
	answers, begun := make(chan bool), make(chan bool, 10)
	k.load = func(build string, _ int) *plan.Proof {
		if build == other {
			begun <- true
			<-answers
		}
		return &plan.Proof{Fields: []string{"a"}}
	}
	k.save = func(*Calibration) error { <-answers; return nil }
	inTime := func(what string, f func()) {
		t.Helper()
		done := make(chan bool)
		go func() { f(); close(done) }()
		select {
		case <-done:
		case <-time.After(soon):
			t.Fatalf("%s: the disk stops the caller", what)
		}
	}
	calibrate := func(context.Context) (*Calibration, error) {
		return &Calibration{Build: other, Major: major, Proof: &plan.Proof{Compared: 2}}, nil
	}
	inTime("a proof that the store does not return", func() {
		if k.Proof(other, major) != nil {
			t.Error("a proof without an answer of the store")
		}
	})
	inTime("more callers", func() {
		for range 1000 { // they do not wait again
			k.Proof(other, major)
		}
	})
	if len(begun) != 1 {
		t.Errorf("the store is searched %d times at once", len(begun))
	}
	inTime("another build", func() {
		if k.Proof(id, major) == nil {
			t.Error("no proof of another build")
		}
	})
	inTime("a calibration", func() {
		if k.Calibrate(other, major, calibrate) != 0 {
			t.Error("no calibration")
		}
		for p := k.Proof(other, major); p == nil || p.Compared != 2; p = k.Proof(other, major) {
			time.Sleep(time.Millisecond)
		}
	})
	inTime("the end", k.Stop)
	close(answers)
	k.running.Wait()
	if p := k.Proof(other, major); p == nil || p.Compared != 2 {
		t.Errorf("the late answer of the store replaces the newer proof: %+v", p)
	}
}
