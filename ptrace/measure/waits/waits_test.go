package waits

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestBucket holds the limits of the histogram's ranges against the range of a duration.
func TestBucket(t *testing.T) {
	for i := range Buckets {
		from, to := BucketLimits(i)
		if Bucket(from) != i {
			t.Errorf("%v is in range %d, not %d", from, Bucket(from), i)
		}
		if to != 0 && (Bucket(to-1) != i || Bucket(to) != i+1) {
			t.Errorf("range %d ends at %v, but %v is in range %d", i, to, to-1, Bucket(to-1))
		}
	}
	if Bucket(-1) != 0 || Bucket(1<<62) != Buckets-1 {
		t.Error("durations outside of the ranges")
	}
}

// TestTotals expects the sum of all processes, ended ones too.
func TestTotals(t *testing.T) {
	one := Event{ID: 1, Calls: 1, Total: time.Second, Longest: time.Second}
	two := Event{ID: 1, Calls: 2, Total: time.Minute, Longest: 50 * time.Second}
	s := Snapshot{Processes: []Process{{Events: []Event{one}}, {Events: []Event{{ID: 2}, one}}}, Ended: []Event{two}}
	sums := s.Totals()
	if len(sums) != 2 || sums[0].Calls != 4 || sums[0].Total != time.Minute+2*time.Second ||
		sums[0].Longest != 50*time.Second {
		t.Errorf("%+v", sums)
	}
}

// TestKeeper keeps the processes asked for, and not another one with the same id.
func TestKeeper(t *testing.T) {
	k := keeper{pids: []int{7}}
	for i, p := range []Process{{PID: 7, Slot: 3}, {PID: 7, Slot: 4}, {PID: 8}} {
		if k.add(p) != (i == 0) {
			t.Errorf("process %+v", p)
		}
	}
	if all := k.addTo([]Process{{PID: 9, Slot: 5}}); len(all) != 2 || all[0].PID != 7 {
		t.Errorf("%+v", all)
	}
}

// TestOpenRefuses expects errors for processes that are no server, and for methods that do not exist.
func TestOpenRefuses(t *testing.T) {
	self := Server{Postmaster: os.Getpid(), WaitPointer: 1 << 20, ProcGlobal: 1 << 20, Layout: Layout{ProcSize: 800}}
	if _, err := Open(self, Options{Method: "guess"}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a method: %v", err)
	}
	if _, err := Open(self, Options{}); err == nil {
		t.Error("this process is a server")
	}
	gone := Server{Postmaster: 1<<22 + 1, Layout: Layout{ProcSize: 800}}
	if _, err := Open(gone, Options{}); !errors.Is(err, ErrServerGone) {
		t.Errorf("no process: %v", err)
	}
}
