package recorder

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/disktest"
	"pg_stat_backtrace/internal/logtest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
)

// controlOnly makes a data directory with a control file only.
func controlOnly(t *testing.T) string {
	t.Helper()
	data := t.TempDir()
	control := make([]byte, 8192)
	copy(control, "\x01\x02\x03\x04\x05\x06\x07\x08\x14\x05\x00\x00")
	if err := errors.Join(os.Mkdir(filepath.Join(data, "global"), 0o700),
		os.WriteFile(filepath.Join(data, "global", "pg_control"), control, 0o600)); err != nil {
		t.Fatal(err)
	}
	return data
}

const controlID = "578437695752307201" // of controlOnly

func noServer() (cluster.Cluster, error) { return cluster.Cluster{}, cluster.ErrNotRunning }

// TestDiskThatHangs freezes the file system of the history: the rules get each look meanwhile, and then the sweeps that had no room
// are counted as lost.
func TestDiskThatHangs(t *testing.T) {
	disk := disktest.NewExt4(t, "100")
	mount := disk.Dir
	looks, progress := 0, new(Progress)
	r := New(Options{
		Store: store.Options{Dir: filepath.Join(mount, "state"), MinFree: 1}, DataDir: controlOnly(t), Server: noServer,
		Watch: func(*rules.Look) { looks++ }, Progress: progress,
	})
	at := time.Now()
	sweep := func() error {
		at = at.Add(time.Second)
		return r.Sweep(at, 0)
	}
	pgtest.Wait(t, "the first sweep", func() bool {
		_ = sweep()
		written, _, _ := progress.Figures()
		return written > 0
	})
	thaw := disk.Freeze()
	before := looks
	var err error
	const more = 5
	for range maxWaiting + more {
		err = sweep()
	}
	if looks != before+maxWaiting+more {
		t.Errorf("%d looks", looks-before)
	}
	if err == nil || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("error: %v", err)
	}
	if _, lost, failing := progress.Figures(); lost < more || failing == 0 {
		t.Errorf("%d lost, failing for %s", lost, failing)
	}
	thaw()
	pgtest.Wait(t, "a disk that answers", func() bool {
		_ = sweep()
		_, _, failing := progress.Figures()
		return failing == 0
	})
	results := func() bool { // close waits for 5 s only
		_ = r.settle(r.disk.collect(time.Second))
		return len(r.disk.waiting) == 0
	}
	pgtest.Wait(t, "the results of all sweeps", results)
	_ = sweep() // the sweeps before may be lost too: this one has their number
	pgtest.Wait(t, "the result of the last sweep", results)
	r.close()
	written, lost, _ := progress.Figures()
	reader, err := store.OpenReader(filepath.Join(mount, "state"), controlID)
	if err != nil {
		t.Fatal(err)
	}
	found, counted := uint64(0), uint64(0)
	err = reader.Sweeps(t.Context(), at.Add(-24*time.Hour), at.Add(time.Hour), func(i store.SweepInfo) error {
		found++
		counted += uint64(i.Lost)
		return nil
	})
	if err != nil || found != written || counted != lost {
		t.Errorf("%d sweeps of %d, %d lost of %d, %v", found, written, counted, lost, err)
	}
}

// TestStateDirectoryFails takes the directory away in several ways. Each time the log gets a line with the reason, once, and
// recording works again by itself.
func TestStateDirectoryFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var lines []string
	r := New(Options{
		Store: store.Options{Dir: dir, MinFree: 1}, DataDir: controlOnly(t), Server: noServer,
		Log: logtest.New(func(l logtest.Line) { lines = append(lines, l.Message+" "+l.Error) }),
	})
	at := time.Now().Truncate(time.Hour).Add(-time.Hour)
	sweeps := func(n int) {
		for range n {
			at = at.Add(time.Second)
			r.report(r.sweep(at, 0))
			_ = r.settle(r.disk.collect(time.Minute)) // the disk is not slow here
		}
	}
	journal := filepath.Join(dir, "cluster="+controlID, "journal")
	sweeps(3)
	for _, c := range []struct {
		name, want string
		harm, mend func()
	}{
		{"removed", "were removed", func() { _ = os.RemoveAll(dir) }, func() {}},
		{"journal removed", "were removed", func() { _ = os.Remove(journal) }, func() {}},
		{"journal replaced", "were removed", func() {
			_ = os.Remove(journal)
			_ = os.WriteFile(journal, []byte("other"), 0o600)
		}, func() {}},
		{"a file in its place", "not a directory", func() {
			_ = os.RemoveAll(dir)
			_ = os.WriteFile(dir, nil, 0o600)
		}, func() { _ = os.Remove(dir) }},
	} {
		lines = nil
		c.harm()
		sweeps(20)
		c.mend()
		at = at.Add(2 * maxPause)
		sweeps(steady + 2)
		if got := strings.Join(lines, "\n"); strings.Count(got, "is not recorded") > 2 || !strings.Contains(got, c.want) ||
			!strings.HasSuffix(got, "history is recorded ") {
			t.Errorf("%s: %s", c.name, got)
		}
	}
	r.close()
}

// largeError is noServer with an error that makes the record of each sweep larger than a page of memory.
func largeError() (cluster.Cluster, error) {
	text := make([]byte, 8<<10)
	_, _ = rand.Read(text)
	return cluster.Cluster{}, fmt.Errorf("%w: %x", cluster.ErrNotRunning, text)
}

// sweeps makes sweeps of a server that does not run, a second of the test's clock apart.
type sweeps struct {
	t        *testing.T
	r        *Recorder
	dir      string
	at       time.Time
	lines    []string
	progress Progress
}

func newSweeps(t *testing.T, dir string) *sweeps {
	t.Helper()
	s := &sweeps{t: t, dir: dir, at: time.Now().Truncate(time.Hour)}
	s.r = New(Options{
		Store: store.Options{Dir: dir, MinFree: 1}, DataDir: controlOnly(t), Server: largeError, Progress: &s.progress,
		Log: logtest.New(func(l logtest.Line) { s.lines = append(s.lines, l.Message+" "+l.Error) }),
	})
	return s
}

func (s *sweeps) make(n int) {
	for range n {
		s.at = s.at.Add(time.Second)
		s.r.report(s.r.sweep(s.at, 0))
		_ = s.r.settle(s.r.disk.collect(time.Minute)) // the disk is not slow here
	}
}

// end ends the recorder. It expects that the log has each line once, that recording works again, and that each sweep is either in
// the files or counted as lost there.
//
// unsynced is the number of written sweeps that the disk may have lost.
func (s *sweeps) end(want []string, unsynced uint64) {
	s.t.Helper()
	s.r.close()
	got := strings.Join(s.lines, "\n")
	for _, w := range want {
		if strings.Count(got, w) == 0 {
			s.t.Errorf("no %q", w)
		}
	}
	if n := strings.Count(got, "is not recorded"); n == 0 || n > 3 || !strings.HasSuffix(got, "history is recorded ") || s.t.Failed() {
		s.t.Errorf("log:\n%s", got)
	}
	written, lost, failing := s.progress.Figures()
	reader, err := store.OpenReader(s.dir, controlID)
	if err != nil {
		s.t.Fatal(err)
	}
	found, counted := uint64(0), uint64(0)
	err = reader.Sweeps(s.t.Context(), s.at.Add(-24*time.Hour), s.at.Add(time.Hour), func(i store.SweepInfo) error {
		found++
		counted += uint64(i.Lost)
		return nil
	})
	if err != nil || found > written || found+unsynced < written || counted != lost || failing != 0 || len(reader.Damage) > 0 {
		s.t.Errorf("%d sweeps of %d, %d lost of %d, failing for %s, %v %v", found, written, counted, lost, failing, err, reader.Damage)
	}
}

// TestStorageFails has a full disk, a disk without inodes, and a file system that fails. The log has the reason with the remedy, and
// recording works again by itself.
func TestStorageFails(t *testing.T) {
	tmpfs := func(t *testing.T) string { return disktest.Tmpfs(t, "size=1m,nr_inodes=40") }
	var disk *disktest.Ext4
	var fill func() func()
	for _, c := range []struct {
		name string
		dir  func(t *testing.T) string
		harm func(t *testing.T, dir string) (mend func())
		skip time.Duration // time without sweeps after the harm
		want []string      // parts of the log's lines
		// unsynced is the number of sweeps since the last fsync.
		unsynced uint64
	}{
		{"full", tmpfs, func(t *testing.T, dir string) func() {
			return disktest.Fill(t, dir, 0)
		}, 0, []string{"no space left on device", "free space in the file system of"}, 0},
		{"full while an hour is closed", tmpfs, func(t *testing.T, dir string) func() {
			return disktest.Fill(t, dir, 8<<10)
		}, time.Hour, []string{"close an hour", "no space left on device", "free space in the file system of"}, 0},
		{"no inode", tmpfs, func(t *testing.T, dir string) func() {
			return disktest.FillInodes(t, dir)
		}, time.Hour, []string{"no space left on device", "no free inode"}, 0},
		{"an error of the file system", func(t *testing.T) string {
			disk = disktest.NewExt4(t, "100")
			return disk.Dir
		}, func(t *testing.T, _ string) func() {
			disk.Break()
			return func() {
				if err := disk.Unmount(); err != nil {
					t.Error("the recorder keeps a file open:", err)
				}
				disk.Repair()
				disk.Mount()
			}
		}, 0, []string{"read-only file system", "mount the file system writable"}, 10},
		{"a thin volume without room", func(t *testing.T) string {
			disk, fill = disktest.NewThin(t)
			return disk.Dir
		}, func(*testing.T, string) func() { return fill() }, 0, []string{
			"failed to write to the disk", "no space left on device", "free space in the file system of",
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.dir(t)
			s := newSweeps(t, filepath.Join(dir, "state"))
			s.make(20)
			mend := c.harm(t, dir)
			s.at = s.at.Add(c.skip)
			s.make(60)
			loss := s.progress.Loss()
			if !loss.Failing || loss.Sweeps == 0 || loss.Since.IsZero() || loss.Reason == "" || loss.Remedy == "" {
				t.Errorf("loss: %+v", loss)
			}
			mend()
			s.at = s.at.Add(2 * maxPause)
			s.make(steady + 2)
			if s.progress.Loss().Failing {
				t.Error("recording does not work again")
			}
			disktest.Evict(t, filepath.Join(s.dir, "cluster="+controlID, "journal"))
			s.end(c.want, c.unsynced)
		})
	}
}

// TestNearlyFullDisk has errors and successes by turns: the log has two lines.
func TestNearlyFullDisk(t *testing.T) {
	var lines []string
	r := New(Options{Log: logtest.New(func(l logtest.Line) { lines = append(lines, l.Message) })})
	for range 100 {
		r.report(unix.ENOSPC)
		r.report(nil)
	}
	for range steady {
		r.report(nil)
	}
	if got := strings.Join(lines, ", "); got != "history is not recorded, history is recorded" {
		t.Error(got)
	}
}

// TestReplacedDataDirectory has another server in the data directory, with another identifier. Its first sweep is in its own folder.
func TestReplacedDataDirectory(t *testing.T) {
	dir, data := filepath.Join(t.TempDir(), "state"), controlOnly(t)
	const noProcess = 1 << 30
	var start atomic.Uint64
	r := New(Options{Store: store.Options{Dir: dir, MinFree: 1}, DataDir: data, Server: func() (cluster.Cluster, error) {
		return cluster.Cluster{DataDir: data, PostmasterPID: noProcess, PostmasterStart: start.Load(), Version: 15}, nil
	}})
	at := time.Now().Truncate(time.Hour)
	for n := range 4 {
		if n == 2 {
			file := filepath.Join(data, "global", "pg_control")
			control, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			control[0]++
			if err := os.WriteFile(file, control, 0o600); err != nil {
				t.Fatal(err)
			}
			start.Add(1)
		}
		at = at.Add(time.Second)
		_ = r.Sweep(at, 0) // the server's memory cannot be read
		_ = r.settle(r.disk.collect(time.Minute))
	}
	r.close()
	for _, id := range []string{controlID, "578437695752307202"} {
		reader, err := store.OpenReader(dir, id)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = reader.Sweeps(t.Context(), at.Add(-time.Hour), at.Add(time.Hour), func(store.SweepInfo) error {
			n++
			return nil
		})
		if err != nil || n != 2 {
			t.Errorf("%d sweeps of %s: %v", n, id, err)
		}
	}
}

// TestFullDiskAtStart has another program take all room that a removed hour makes. At most one hour is removed in a minute. When there is
// room again, the first sweep has a note.
func TestFullDiskAtStart(t *testing.T) {
	disk := disktest.Tmpfs(t, "size=1m,nr_inodes=60")
	dir := filepath.Join(disk, "state")
	hours := filepath.Join(dir, "cluster=12", "date=2026-01-01")
	for _, hour := range []string{"01", "02", "03", "04"} {
		if err := os.MkdirAll(filepath.Join(hours, "hour="+hour), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(hours, "hour="+hour, "rows.parquet"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newSweeps(t, dir)
	other := filepath.Join(disk, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		for {
			f, err := os.CreateTemp(other, "")
			if errors.Is(err, unix.ENOSPC) {
				break
			}
			if err = errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}
		s.make(1)
	}
	left, err := os.ReadDir(hours)
	if err != nil || len(left) != 3 {
		t.Errorf("%d of 4 hours are left: %v", len(left), err)
	}
	if !s.progress.Loss().Failing {
		t.Error("the disk was not full")
	}
	if err := os.RemoveAll(other); err != nil {
		t.Fatal(err)
	}
	s.at = s.at.Add(2 * maxPause)
	s.r.o.Server = noServer // instead of largeError, whose note is long
	s.make(2)
	s.r.close()
	reader, err := store.OpenReader(dir, controlID)
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	err = reader.Sweeps(t.Context(), s.at.Add(-time.Hour), s.at.Add(time.Hour), func(i store.SweepInfo) error {
		notes = append(notes, i.Note)
		return nil
	})
	const want = "1 old hour was removed early, because the disk or a quota was full"
	if err != nil || len(notes) != 2 || !strings.Contains(notes[0], want) || strings.Contains(notes[1], want) {
		t.Errorf("%.200q, %v", notes, err)
	}
}
