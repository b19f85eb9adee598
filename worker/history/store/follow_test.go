package store_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// TestFollow: a follower reads each sweep once while a recorder writes, also at the end of an hour, after a torn write, and
// after a restart of the recorder.
func TestFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(1, 2))
	at := time.Date(2026, 11, 28, 1, 59, 50, 0, time.UTC)
	w := open(t, dir)
	write := func(n int) {
		t.Helper()
		for range n {
			at = at.Add(time.Second)
			if err := w.Append(sweep(random, at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	begin := at.Add(2 * time.Second)
	f := r.Follow(begin)
	defer f.Close()
	last := begin
	next := func(budget time.Duration, want, wantLeft int) {
		t.Helper()
		n := 0
		left, err := f.Next(budget, func(s *store.Sweep) {
			n++
			if want > 1 && !s.Time.Equal(last.Add(time.Second)) || len(s.Rows) == 0 || s.Rows[0].Time != s.Time.UnixMicro() {
				t.Errorf("%s after %s, with %d rows", s.Time, last, len(s.Rows))
			}
			last = s.Time
		})
		if err != nil || n != want || left != wantLeft {
			t.Fatalf("%d sweeps, %d left out, want %d and %d, %v", n, left, want, wantLeft, err)
		}
	}
	next(time.Hour, 0, 0) // there is no journal
	write(5)
	next(time.Hour, 3, 0)
	next(time.Hour, 0, 0)
	write(3)
	next(time.Hour, 3, 0)
	write(10) // over the end of the hour: the first journal is gone
	n := 0
	if _, err := f.Next(time.Hour, func(s *store.Sweep) { n, last = n+1, s.Time }); err != nil || n != 10 {
		t.Fatalf("%d sweeps over the end of an hour, %v", n, err)
	}
	write(4)
	next(-1, 1, 3) // the newest one only
	if !last.Equal(at) {
		t.Fatalf("%s, want %s", last, at)
	}
	journal, err := filepath.Glob(filepath.Join(dir, "cluster=*", "*journal*"))
	if err != nil || len(journal) != 1 {
		t.Fatalf("%v, %v", journal, err)
	}
	torn, err := os.OpenFile(journal[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := torn.WriteString("\x20\x00\x00\x00torn"); err != nil {
		t.Fatal(err)
	}
	next(time.Hour, 0, 0)
	if err := torn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = open(t, dir) // a new recorder cuts the torn end off
	write(2)
	next(time.Hour, 2, 0)
	at = at.Add(-time.Minute) // the clock goes back: these sweeps are older than the newest
	write(2)
	next(time.Hour, 0, 0)
	at = at.Add(2 * time.Minute)
	write(1)
	next(time.Hour, 1, 0)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
