package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/disktest"
	"pg_stat_backtrace/worker/history/store"
)

var meta = store.Meta{SystemID: "7577921432", Timeline: 1, ServerVersion: "18.4", Host: "db1"}

func open(t *testing.T, dir string) *store.Writer {
	t.Helper()
	w, err := store.Open(store.Options{Dir: dir, Meta: meta, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// sweep makes a sweep with some rows, of which each has all columns.
func sweep(r *rand.Rand, at time.Time) *store.Sweep {
	s := &store.Sweep{Time: at.UTC(), Period: time.Second, Delay: time.Millisecond}
	for pid := range int32(1 + r.IntN(5)) {
		id := 1 + r.Int64N(20)
		row := store.Row{
			Time: at.UnixMicro(), PID: 100 + pid, Start: 1700000000000000 + int64(pid), Type: "client backend", DatabaseID: 5,
			Database: "app", UserID: 10, User: "alice", App: "psql", Client: "10.0.0.1", State: "active", XactStart: at.UnixMicro() - 5,
			QueryStart: at.UnixMicro() - 4, StateStart: at.UnixMicro() - 4, WaitType: "Lock", WaitEvent: []string{"relation", "tuple"}[r.IntN(2)],
			WaitStart: at.UnixMicro() - 3, QueryID: -1 - r.Int64N(3), PhraseKey: "lock.row", Phrase: "waits for a row",
			Function: "f line 3", Leader: 0, Stack: id, Method: "blocked",
			BlockedBy: []store.Blocker{{PID: 99, Lock: "relation", Mode: "ShareLock", Object: "5/1259", Soft: r.IntN(2) == 0}},
		}
		row.Query = fmt.Sprintf("select %d", row.QueryID)
		if r.IntN(4) == 0 {
			row.BlockedBy = nil
		}
		s.Rows = append(s.Rows, row)
		s.Stacks = append(s.Stacks, store.Stack{ID: id, Frames: []string{"f" + strconv.FormatInt(id, 10), "main"}})
	}
	return s
}

func rows(t *testing.T, r *store.Reader, since, until time.Time) []store.Row {
	t.Helper()
	var list []store.Row
	if err := r.Rows(t.Context(), since, until, func(row *store.Row) error { list = append(list, *row); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, err := range r.Damage {
		t.Error(err)
	}
	return list
}

// odd is the name of a state directory, with all characters that have a meaning in a pattern.
const odd = `a[1]*?\`

// TestRoundTrip records two and a half hours, and reads every row, stack and sum again.
func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), odd)
	random := rand.New(rand.NewPCG(1, 2))
	from := time.Date(2026, 11, 28, 1, 30, 0, 0, time.UTC)
	w := open(t, dir)
	var want []store.Row
	stacks := map[int64]bool{}
	end := from.Add(150 * time.Minute)
	for at := from; at.Before(end); at = at.Add(7 * time.Second) {
		s := sweep(random, at)
		want = append(want, s.Rows...)
		for _, k := range s.Stacks {
			stacks[k.ID] = true
		}
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
	}
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	got := rows(t, r, from, end)
	if len(got) != len(want) {
		t.Fatalf("%d rows, not %d", len(got), len(want))
	}
	for i := range got {
		if len(got[i].BlockedBy) == 0 {
			got[i].BlockedBy = nil
		}
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("row %d:\n%+v, not\n%+v", i, got[i], want[i])
		}
	}
	part := rows(t, r, from.Add(20*time.Minute), from.Add(25*time.Minute))
	for _, row := range part {
		if row.Time < from.Add(20*time.Minute).UnixMicro() || row.Time >= from.Add(25*time.Minute).UnixMicro() {
			t.Fatalf("row of %s is outside of the span", time.UnixMicro(row.Time))
		}
	}
	if len(part) < 40 {
		t.Errorf("%d rows in five minutes", len(part))
	}
	found, err := r.Stacks(t.Context(), from, end, stacks)
	if err != nil || len(found) != len(stacks) {
		t.Errorf("%d stacks, not %d: %v", len(found), len(stacks), err)
	}
	for _, byMinute := range []bool{false, true} {
		var n int64
		if err := r.Sums(t.Context(), store.SumOptions{Since: from, Until: end, ByMinute: byMinute}, func(s *store.Sum) error { n += s.Samples; return nil }); err != nil {
			t.Fatal(err)
		}
		if n != int64(len(want)) {
			t.Errorf("sums (by minute: %v) have %d samples, not %d", byMinute, n, len(want))
		}
	}
	n := 0
	if err := r.Sweeps(t.Context(), from, end, func(store.SweepInfo) error { n++; return nil }); err != nil || n != 1286 {
		t.Errorf("%d sweeps: %v", n, err)
	}
	if m, err := r.Meta(); err != nil || m != meta {
		t.Errorf("meta %+v, %v", m, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestClockStep sets the clock back by two hours: the hour gets a second part, and nothing is lost.
func TestClockStep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(3, 4))
	w := open(t, dir)
	from := time.Date(2026, 11, 28, 5, 0, 0, 0, time.UTC)
	n := 0
	for _, at := range []time.Duration{0, time.Second, time.Hour, 2 * time.Hour, 10 * time.Second, 11 * time.Second, 3 * time.Hour} {
		if at == 3*time.Hour { // the journal is of an earlier hour than the closed ones
			seen := spanOf(t, dir, from, from.Add(3*time.Hour))
			if want := "0s 1s 10s 11s 1h0m0s 2h0m0s"; seen != want {
				t.Errorf("%s, want %s", seen, want)
			}
		}
		s := sweep(random, from.Add(at))
		n += len(s.Rows)
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	if got := rows(t, r, from, from.Add(5*time.Hour)); len(got) != n {
		t.Errorf("%d rows, not %d", len(got), n)
	}
	if _, err := os.Stat(filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28/hour=05/rows-2.parquet")); err != nil {
		t.Error(err)
	}
}

// TestClockStepForward sets the clock forward by a month, and back. No hour is removed, and a note says why. When the new time has
// lasted for an hour, the old hours are removed.
func TestClockStepForward(t *testing.T) {
	const month = 30 * 24 * time.Hour
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(5, 6))
	w := open(t, dir)
	defer w.Close()
	now := time.Now()
	notes := ""
	put := func(at time.Time, step time.Duration) {
		t.Helper()
		s := sweep(random, at)
		s.Time = at
		if step > 0 {
			// The wall clock alone: the seconds are in the upper bits of the first word, see the source of time.Time.
			(*[1]uint64)(unsafe.Pointer(&s.Time))[0] += uint64(step/time.Second) << 30
		}
		for i := range s.Rows {
			s.Rows[i].Time = s.Time.UnixMicro()
		}
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
		notes += s.Note
	}
	old := []time.Time{now.Add(-4 * time.Hour).Round(0), now.Add(-3 * time.Hour).Round(0), now.Add(-2 * time.Hour).Round(0)}
	left := func() (n int) {
		for _, at := range old {
			if _, err := os.Stat(filepath.Join(dir, "cluster="+meta.SystemID, at.UTC().Format("date=2006-01-02/hour=15"))); err == nil {
				n++
			}
		}
		return n
	}
	for _, at := range append(old, now) {
		put(at, 0)
	}
	put(now.Add(2*time.Minute), month)
	put(now.Add(4*time.Minute), 0)
	if n := left(); n != len(old) || strings.Count(notes, "the clock was set forward by 30 d:") != 1 {
		t.Errorf("%d hours are left, notes: %q", n, notes)
	}
	put(now.Add(10*time.Minute), month)
	put(now.Add(30*time.Minute), month)
	if n := left(); n != len(old) {
		t.Errorf("after twenty minutes, %d hours are left", n)
	}
	put(now.Add(90*time.Minute), month)
	if n := left(); n != 0 {
		t.Errorf("after an hour, %d hours are left", n)
	}
}

// TestOpenWithWrongClock opens a store again and again while the clock may be a month ahead. Old hours are removed when this time has
// lasted for an hour. They are removed at once if an hour of the last day was recorded.
func TestOpenWithWrongClock(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	now := time.Now()
	for _, c := range []struct {
		recent time.Duration // age of a recorded hour; 0: none
		left   []int         // old hours that are left after each sweep
	}{{0, []int{3, 3, 3, 0}}, {48 * time.Hour, []int{3, 3, 3, 0}}, {3 * time.Hour, []int{0, 0, 0, 0}}} {
		dir := filepath.Join(t.TempDir(), "state")
		open(t, dir).Close()
		hour := func(age time.Duration) string {
			path := filepath.Join(dir, "cluster="+meta.SystemID, now.Add(-age).UTC().Format("date=2006-01-02/hour=15"))
			if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "rows.parquet"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			return path
		}
		const month = 30 * 24 * time.Hour
		old := []string{hour(month), hour(month + time.Hour), hour(month + 2*time.Hour)}
		if c.recent > 0 {
			hour(c.recent)
		}
		var w *store.Writer
		for i, after := range []time.Duration{0, 10 * time.Minute, 30 * time.Minute, 95 * time.Minute} {
			if i < 3 { // the last writer stays open
				w = open(t, dir)
			}
			s := sweep(random, now.Add(after))
			s.Time = now.Add(after) // with the reading of the monotonic clock
			if err := w.Append(s); err != nil {
				t.Fatal(err)
			}
			left := 0
			for _, path := range old {
				if _, err := os.Stat(path); err == nil {
					left++
				}
			}
			if left != c.left[i] {
				t.Errorf("recorded %s before, after %s: %d hours are left, want %d", c.recent, after, left, c.left[i])
			}
			if i != 2 {
				w.Close()
			}
		}
	}
}

// spanOf returns the times of the sweeps that ReadSpan passes, from a time on. Each must have its rows and no note.
func spanOf(t *testing.T, dir string, from, until time.Time) string {
	t.Helper()
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	var times []string
	_, err = store.ReadSpan(t.Context(), r, from, until, func(s *store.SpanSweep, _ *store.Gap) error {
		times = append(times, s.Time.Sub(from).String())
		if len(s.Rows) == 0 || s.Note != "" {
			t.Errorf("sweep of %s: %d rows, note %q", s.Time, len(s.Rows), s.Note)
		}
		return nil
	})
	if err != nil || len(r.Damage) > 0 {
		t.Errorf("%v, %v", err, r.Damage)
	}
	return strings.Join(times, " ")
}

// TestReadWhileHourIsClosed reads two hours. While the first one is read, a worker closes the second one, and begins a third one.
func TestReadWhileHourIsClosed(t *testing.T) {
	from := time.Date(2026, 11, 28, 2, 0, 0, 0, time.UTC)
	until := from.Add(2 * time.Hour)
	for name, read := range map[string]func(r *store.Reader, each func(at time.Time)) error{
		"Rows": func(r *store.Reader, each func(time.Time)) error {
			return r.Rows(t.Context(), from, until, func(row *store.Row) error { each(time.UnixMicro(row.Time)); return nil })
		},
		"Sums": func(r *store.Reader, each func(time.Time)) error {
			return r.Sums(t.Context(), store.SumOptions{Since: from, Until: until, ByMinute: true}, func(s *store.Sum) error {
				each(time.UnixMicro(s.Time))
				return nil
			})
		},
		"Sweeps": func(r *store.Reader, each func(time.Time)) error {
			return r.Sweeps(t.Context(), from, until, func(s store.SweepInfo) error { each(time.UnixMicro(s.Time)); return nil })
		},
	} {
		dir := filepath.Join(t.TempDir(), "state")
		random := rand.New(rand.NewPCG(31, 32))
		w := open(t, dir)
		for at := from; at.Before(until); at = at.Add(time.Hour) {
			s := sweep(random, at)
			s.Rows = s.Rows[:1]
			if err := w.Append(s); err != nil {
				t.Fatal(err)
			}
		}
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		err = read(r, func(at time.Time) {
			if seen == nil {
				if err := w.Append(sweep(random, until)); err != nil {
					t.Error(err)
				}
			}
			seen = append(seen, at.Sub(from).String())
		})
		if got := strings.Join(seen, " "); err != nil || got != "0s 1h0m0s" || len(r.Damage) > 0 {
			t.Errorf("%s: %q, %v, %v", name, got, err, r.Damage)
		}
		w.Close()
	}
}

// TestTorn cuts and changes the journal at random places: a reader gets a part of the written rows and no others, and the
// next writer can append.
func TestTorn(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	from := time.Now().UTC().Truncate(time.Hour)
	dir := filepath.Join(t.TempDir(), "state")
	w := open(t, dir)
	written := map[int64]int{}
	for i := range 60 {
		s := sweep(random, from.Add(time.Duration(i)*time.Second))
		written[s.Time.UnixMicro()] = len(s.Rows)
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	path := filepath.Join(dir, "cluster="+meta.SystemID, "journal")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		b := append([]byte(nil), whole...)
		if i%2 == 0 {
			b = b[:random.IntN(len(b))]
		} else {
			b[random.IntN(len(b))] ^= byte(1 << random.IntN(8))
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int64]int{}
		if err := r.Rows(t.Context(), from, from.Add(time.Hour), func(row *store.Row) error { seen[row.Time]++; return nil }); err != nil {
			t.Fatal(err)
		}
		for at, n := range seen {
			if written[at] != n {
				t.Fatalf("%d rows at %d, and %d were written", n, at, written[at])
			}
		}
		if i%20 != 0 {
			continue
		}
		w := open(t, dir)
		s := sweep(random, from.Add(59*time.Minute))
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
		w.Close()
		r, _ = store.OpenReader(dir, meta.SystemID)
		n := 0
		if err := r.Rows(t.Context(), from.Add(59*time.Minute), from.Add(time.Hour), func(*store.Row) error { n++; return nil }); err != nil || n != len(s.Rows) {
			t.Fatalf("after a torn journal %d rows, not %d: %v", n, len(s.Rows), err)
		}
		for _, f := range []string{"journal", "date="} {
			left, _ := filepath.Glob(filepath.Join(dir, "cluster="+meta.SystemID, f+"*"))
			for _, l := range left {
				os.RemoveAll(l)
			}
		}
	}
}

// TestBegunJournal: a journal that ends before its first sweep, as a killed worker may leave it, is no damage; a changed one is.
func TestBegunJournal(t *testing.T) {
	from := time.Now().UTC().Truncate(time.Hour)
	dir := filepath.Join(t.TempDir(), "state")
	w := open(t, dir)
	if err := w.Append(sweep(rand.New(rand.NewPCG(7, 8)), from)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	path := filepath.Join(dir, "cluster="+meta.SystemID, "journal")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damage := func(b []byte) []error {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Rows(t.Context(), from, from.Add(time.Hour), func(*store.Row) error { return nil }); err != nil {
			t.Fatal(err)
		}
		return r.Damage
	}
	for n := range 200 { // the first frame is longer
		if list := damage(whole[:n]); len(list) > 0 {
			t.Fatalf("the first %d bytes: %v", n, list)
		}
	}
	for _, at := range []int{0, 5, 12, 30} { // the magic, the checksum, and what follows
		b := append([]byte(nil), whole...)
		if b[at] ^= 1; len(damage(b)) == 0 {
			t.Errorf("byte %d is another one, and there is no damage", at)
		}
	}
}

// TestKilled kills a process that records, again and again: every sweep that it reported as written is there.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("PGSB_TEST_RECORD_INTO"); dir != "" {
		record(dir)
		return
	}
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(7, 8))
	reported := 0
	for range 20 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "PGSB_TEST_RECORD_INTO="+dir, "PGSB_TEST_RECORD_FROM="+strconv.Itoa(reported))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		want := 1 + random.IntN(40)
		var n, last int
		for n < want {
			if _, err := fmt.Fscan(out, &last); err != nil {
				t.Fatal(err)
			}
			n++
		}
		_ = cmd.Process.Kill()
		for { // written before it was killed
			if _, err := fmt.Fscan(out, &last); err != nil {
				break
			}
		}
		_ = cmd.Wait()
		reported = last + 1
	}
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for _, row := range rows(t, r, time.Unix(0, 0), time.Unix(1<<33, 0)) {
		seen[row.QueryID] = true
	}
	found, err := r.Stacks(t.Context(), time.Unix(0, 0), time.Unix(1<<33, 0), map[int64]bool{1: true, 2: true, 3: true})
	if err != nil || len(found) != 3 {
		t.Errorf("%d stacks, %v", len(found), err)
	}
	for at := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC); at.Before(time.Date(2026, 11, 28, 0, 0, reported*30, 0, time.UTC)); at = at.Add(time.Hour) {
		// each hour is complete in itself
		want := map[int64]bool{}
		for _, row := range rows(t, r, at, at.Add(time.Hour)) {
			want[row.Stack] = true
		}
		found, err := r.Stacks(t.Context(), at, at.Add(time.Hour), want)
		if err != nil || len(found) != len(want) {
			t.Errorf("%s: %d of %d stacks, %v", at, len(found), len(want), err)
		}
	}
	for i := range reported {
		if !seen[int64(i+1)] {
			t.Errorf("sweep %d of %d was reported as written, and is missing", i, reported)
		}
	}
}

// record appends sweeps, 30 s apart so that hours are closed too, and prints the number of each one when it is written.
func record(dir string) {
	w, err := store.Open(store.Options{Dir: dir, Meta: meta, MinFree: 1, Keep: 100 * 365 * 24 * time.Hour})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	from, _ := strconv.Atoi(os.Getenv("PGSB_TEST_RECORD_FROM"))
	for i := from; ; i++ {
		at := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC).Add(time.Duration(i) * 30 * time.Second)
		id := int64(1 + i%3)
		if err := w.Append(&store.Sweep{Time: at, Period: time.Second, Rows: []store.Row{{PID: 1, QueryID: int64(i + 1), Stack: id}}, Stacks: []store.Stack{{ID: id, Frames: []string{"f"}}}}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// TestTwoWorkers starts a second recorder of one cluster.
func TestTwoWorkers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	w := open(t, dir)
	defer w.Close()
	_, err := store.Open(store.Options{Dir: dir, Meta: meta})
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second worker: %v", err)
	}
}

// TestDirectories gives the recorder folders that it must not use.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	link, file, open := filepath.Join(dir, "link"), filepath.Join(dir, "file"), filepath.Join(dir, "open")
	if err := errors.Join(os.Symlink(t.TempDir(), link), os.WriteFile(file, nil, 0o600), os.Mkdir(open, 0o700), os.Chmod(open, 0o755)); err != nil {
		t.Fatal(err)
	}
	cases := map[string]string{link: "is a symbolic link", file: "not a directory", open: "chmod 700", filepath.Join(dir, "a/b"): "no such file"}
	if os.Geteuid() == 0 {
		theirs := filepath.Join(dir, "theirs")
		if err := errors.Join(os.Mkdir(theirs, 0o700), os.Chown(theirs, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		cases[theirs] = "belongs to user 65534"
	}
	for path, want := range cases {
		if _, err := store.Open(store.Options{Dir: path, Meta: meta}); !errors.Is(err, store.ErrDirectory) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %q", path, err, want)
		}
	}
	for _, id := range []string{"", "../x", "1/2", "x"} {
		m := meta
		m.SystemID = id
		if _, err := store.Open(store.Options{Dir: filepath.Join(dir, "s"), Meta: m}); !errors.Is(err, store.ErrDirectory) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestPrune keeps the newest hours within size and age.
func TestPrune(t *testing.T) {
	dir := filepath.Join(t.TempDir(), odd)
	random := rand.New(rand.NewPCG(9, 10))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w, err := store.Open(store.Options{Dir: dir, Meta: meta, MinFree: 1, Keep: 5 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		s := sweep(random, from.Add(time.Duration(i)*time.Hour))
		if err := w.Append(s); err != nil || s.Note != "" {
			t.Fatal(err, s.Note)
		}
	}
	w.Close()
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	if first, _ := r.Span(); !first.Equal(from.Add(5 * time.Hour)) {
		t.Errorf("kept since %s", first)
	}
	w, err = store.Open(store.Options{Dir: dir, Meta: meta, MinFree: 1, Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := sweep(random, from.Add(12*time.Hour))
	if err := w.Append(s); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.Note, "7 old hours were removed early") {
		t.Errorf("note: %q", s.Note)
	}
	if first, _ := r.Span(); !first.IsZero() {
		t.Errorf("kept since %s, with one byte allowed", first)
	}
	w2, err := store.Open(store.Options{Dir: dir + "2", Meta: meta, MinFree: 1 << 60})
	if err != nil {
		t.Fatal(err)
	}
	defer w2.Close()
	if err := w2.Append(sweep(random, from)); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("full disk: %v", err)
	}
	if w2.Lost() != 1 {
		t.Errorf("%d lost sweeps", w2.Lost())
	}
}

// TestOpenFull has a disk without room, or without inodes, when a worker starts: old hours are removed until it records again. The
// note of the first sweep counts them.
func TestOpenFull(t *testing.T) {
	for name, fill := range map[string]func(t *testing.T, dir string){
		"room":   func(t *testing.T, dir string) { disktest.Fill(t, dir, 0) },
		"inodes": func(t *testing.T, dir string) { disktest.FillInodes(t, dir) },
	} {
		for _, id := range []string{meta.SystemID, "12"} { // the recorded server, and another server, which has no folder yet
			t.Run(name+" "+id, func(t *testing.T) {
				disk := disktest.Tmpfs(t, "size=1m,nr_inodes=60")
				dir := filepath.Join(disk, "state")
				random := rand.New(rand.NewPCG(29, 30))
				at := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
				w := open(t, dir)
				for range 6 {
					if err := w.Append(sweep(random, at)); err != nil {
						t.Fatal(err)
					}
					at = at.Add(time.Hour)
				}
				w.Close()
				fill(t, disk)
				own := meta
				own.SystemID = id
				hours := func() int {
					list, _ := filepath.Glob(filepath.Join(dir, "cluster=*/date=*/hour=*/rows.parquet"))
					return len(list)
				}
				failed, before := 0, hours()
				var notes store.Notes
				for ; failed < 6; failed++ {
					var err error
					if w, err = store.Open(store.Options{Dir: dir, Meta: own, MinFree: 1, Notes: &notes}); err == nil {
						break
					}
				}
				s := sweep(random, at)
				for ; failed < 6 && w.Append(s) != nil; failed++ {
					at = at.Add(time.Minute)
					s = sweep(random, at)
				}
				if failed == 6 {
					t.Errorf("%d attempts failed", failed)
				}
				removed, noted := before-hours(), 0
				if id == meta.SystemID { // its journal was closed
					removed++
				}
				for _, m := range regexp.MustCompile(`(\d+) old hours? w`).FindAllStringSubmatch(s.Note, -1) {
					n, _ := strconv.Atoi(m[1])
					noted += n
				}
				if noted != removed {
					t.Errorf("%d hours were removed, the note has %q", removed, s.Note)
				}
				if w != nil {
					w.Close()
				}
			})
		}
	}
}

// TestPruneShared: a folder of several has its part of the size, also after another folder was made.
func TestPruneShared(t *testing.T) {
	parent := t.TempDir()
	random := rand.New(rand.NewPCG(31, 32))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	kept := func(dir string, size int64, shared bool) int {
		t.Helper()
		w, err := store.Open(store.Options{Dir: dir, Meta: meta, MinFree: 1, Size: size, Shared: shared})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for i := range 10 {
			if err := w.Append(sweep(random, from.Add(time.Duration(i)*time.Hour))); err != nil {
				t.Fatal(err)
			}
		}
		hours, _ := filepath.Glob(filepath.Join(dir, "cluster=*/date=*/hour=*"))
		return len(hours)
	}
	size := int64(0)
	if n := kept(filepath.Join(parent, "one"), 1<<30, false); n != 9 {
		t.Fatalf("%d hours", n)
	}
	files, _ := filepath.Glob(filepath.Join(parent, "one/cluster=*/date=*/hour=*/*"))
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += st.Size()
	}
	if n := kept(filepath.Join(parent, "uid-1"), size, true); n < 8 {
		t.Errorf("alone: %d hours", n)
	}
	if err := os.Mkdir(filepath.Join(parent, "uid-2"), 0o700); err != nil {
		t.Fatal(err)
	}
	if n := kept(filepath.Join(parent, "uid-3"), size, true); n < 1 || n > 4 {
		t.Errorf("with a third of the size: %d hours", n)
	}
	if _, err := store.Clusters(parent); !errors.Is(err, store.ErrNoHistory) || !strings.Contains(err.Error(), "but in its folders uid-1, uid-2, uid-3") {
		t.Errorf("%v", err)
	}
}

// TestDamaged changes and cuts a closed hour's files: an error names the file, and the other hours are read.
func TestDamaged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(11, 12))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w := open(t, dir)
	for i := range 3 {
		for k := range 50 {
			if err := w.Append(sweep(random, from.Add(time.Duration(i)*time.Hour+time.Duration(k)*time.Second))); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Close()
	path := filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28/hour=00/rows.parquet")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reported := 0
	for i := range 60 {
		b := append([]byte(nil), whole...)
		if i%4 == 0 {
			b = b[:random.IntN(len(b))]
		} else {
			for range 1 + random.IntN(3) {
				b[random.IntN(len(b))] ^= byte(1 + random.IntN(255))
			}
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		second := 0
		err = r.Rows(context.Background(), from, from.Add(3*time.Hour), func(row *store.Row) error {
			if row.Time >= from.Add(time.Hour).UnixMicro() {
				second++
			}
			return nil
		})
		if err != nil || second == 0 {
			t.Fatalf("%v, %d rows of the other hours", err, second)
		}
		reported += len(r.Damage)
	}
	if reported < 30 {
		t.Errorf("only %d of 60 damaged files were reported", reported)
	}
}

// TestLongNote has a note with a long error. Also the closed hour can be read.
func TestLongNote(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(29, 30))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w := open(t, dir)
	for i := range 2 {
		s := sweep(random, from.Add(time.Duration(i)*time.Hour))
		s.Note = strings.Repeat("\u00e9", 50_000)
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	notes := 0
	err = r.Sweeps(t.Context(), from, from.Add(2*time.Hour), func(s store.SweepInfo) error {
		if strings.HasPrefix(s.Note, "\u00e9\u00e9") && utf8.ValidString(s.Note) {
			notes++
		}
		return nil
	})
	if err != nil || notes != 2 || len(r.Damage) > 0 {
		t.Errorf("%d notes, %v, %v", notes, err, r.Damage)
	}
}

// TestReadErrorKeepsJournal has a disk that cannot be read for a while: a new worker keeps the whole
// journal, and continues it later. Until then a reader reports the damage.
func TestReadErrorKeepsJournal(t *testing.T) {
	disk := disktest.NewExt4(t, "100")
	dir := filepath.Join(disk.Dir, "state")
	random := rand.New(rand.NewPCG(31, 32))
	at := time.Now().UTC().Truncate(time.Hour)
	w := open(t, dir)
	const before = 200
	for range before {
		at = at.Add(time.Second)
		if err := w.Append(sweep(random, at)); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	journal := filepath.Join(dir, "cluster="+meta.SystemID, "journal")
	if err := disk.Sync(); err != nil {
		t.Fatal(err)
	}
	repair := disk.Unreadable()
	disktest.Evict(t, journal)
	if _, err := store.Open(store.Options{Dir: dir, Meta: meta, MinFree: 1}); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "dmesg") {
		t.Error(err)
	}
	r, err := store.OpenReader(dir, meta.SystemID)
	if err == nil {
		err = r.Sweeps(t.Context(), at.Add(-time.Hour), at, func(store.SweepInfo) error { return nil })
	}
	if err != nil || len(r.Damage) == 0 {
		t.Errorf("%v, damage: %v", err, r.Damage)
	}
	repair()
	disktest.Evict(t, journal)
	w = open(t, dir)
	if err := w.Append(sweep(random, at.Add(time.Second))); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if r, err = store.OpenReader(dir, meta.SystemID); err != nil {
		t.Fatal(err)
	}
	found := 0
	err = r.Sweeps(t.Context(), at.Add(-time.Hour), at.Add(time.Hour), func(store.SweepInfo) error { found++; return nil })
	if err != nil || found != before+1 || len(r.Damage) > 0 {
		t.Errorf("%d sweeps of %d, %v, %v", found, before+1, err, r.Damage)
	}
}
