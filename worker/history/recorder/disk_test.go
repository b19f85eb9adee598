package recorder

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// small mounts a separate file system, with so many inodes, until the test ends.
func small(t *testing.T, inodes string) string {
	t.Helper()
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 16<<20), os.Mkdir(mount, 0o700)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-m", "0", "-N", inodes, image).CombinedOutput(); err != nil {
		t.Skipf("no file system can be made: %v %s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", image, mount).CombinedOutput(); err != nil {
		t.Skipf("no file system can be mounted: %v %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	return mount
}

// freezeDisk makes writes to a file system wait, until the returned function is called.
func freezeDisk(t *testing.T, mount string) (thaw func()) {
	t.Helper()
	const fifreeze, fithaw = 0xc0045877, 0xc0045878
	f, err := os.Open(mount)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), fifreeze, 0); err != nil {
		t.Skipf("the file system cannot be frozen: %v", err)
	}
	done := false
	thaw = func() {
		if !done {
			done = true
			_ = unix.IoctlSetInt(int(f.Fd()), fithaw, 0)
			_ = f.Close()
		}
	}
	t.Cleanup(thaw)
	return thaw
}

// TestDiskThatHangs freezes the file system of the history: the rules get each look meanwhile, and then the sweeps that had no room
// are counted as lost.
func TestDiskThatHangs(t *testing.T) {
	mount := small(t, "100")
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
	thaw := freezeDisk(t, mount)
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
	r.close()
	written, lost, _ := progress.Figures()
	reader, err := store.OpenReader(filepath.Join(mount, "state"), controlID)
	if err != nil {
		t.Fatal(err)
	}
	found, counted := uint64(0), uint64(0)
	err = reader.Sweeps(t.Context(), at.Add(-time.Hour), at.Add(time.Hour), func(i store.SweepInfo) error {
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
			r.settle(r.disk.collect(time.Minute)) // the disk is not slow here
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
