package ptrace

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestMapsSnapshot checks that a capture with an earlier MapsSnapshot gives the same result, in any state of the
// process.
func TestMapsSnapshot(t *testing.T) {
	target := startTarget(t, "sleep")
	untilState(t, target.pid, 'S')
	first := mustCapture(t, target.pid, snapshot.Options{})
	untilState(t, target.pid, 'S') // after a stop it falls asleep again
	second := mustCapture(t, target.pid, snapshot.Options{MapsSnapshot: first.MapsSnapshot})
	if second.MapsSnapshot != first.MapsSnapshot || &second.Maps[0] != &first.Maps[0] {
		t.Error("the mappings were read again")
	}
	a, b := &first.Threads[0], &second.Threads[0]
	if string(a.Registers) != string(b.Registers) || a.Stack.Start != b.Stack.Start || a.Name != b.Name ||
		a.State != b.State {
		t.Errorf("%s in %c, stack 0x%x; by the layout %s in %c, stack 0x%x",
			a.Name, a.State, a.Stack.Start, b.Name, b.State, b.Stack.Start)
	}
	all := snapshot.Options{MapsSnapshot: first.MapsSnapshot, AllThreads: true}
	if s := mustCapture(t, target.pid, all); s.MapsSnapshot == first.MapsSnapshot {
		t.Error("the layout was taken for all threads")
	}
	kill(t, target.pid, unix.SIGSTOP)
	untilState(t, target.pid, 'T')
	stopped, err := Capture(t.Context(), anyTarget(target.pid), snapshot.Options{MapsSnapshot: first.MapsSnapshot, Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	if state := stopped.Threads[0].State; state != 'T' {
		t.Errorf("a stopped process has state %c", state)
	}
	untilState(t, target.pid, 'T')
	kill(t, target.pid, unix.SIGCONT)
	untilState(t, target.pid, 'S')
	checkUnharmed(t, target.pid)
}

// TestMapsSnapshotOfOtherProcess checks that a MapsSnapshot of another process or program is ignored.
func TestMapsSnapshotOfOtherProcess(t *testing.T) {
	one, other := startTarget(t, "sleep"), startTarget(t, "sleep")
	layout := mustCapture(t, one.pid, snapshot.Options{}).MapsSnapshot
	if s := mustCapture(t, other.pid, snapshot.Options{MapsSnapshot: layout}); s.MapsSnapshot == layout {
		t.Error("the layout of another process was taken")
	}
	stat := *layout.Stat()
	stat.StackStart++ // as execve(2) changes it
	stale := snapshot.NewMapsSnapshot(layout.Maps(), &stat)
	s := mustCapture(t, one.pid, snapshot.Options{MapsSnapshot: stale})
	if s.MapsSnapshot == stale || s.Maps[0] != layout.Maps()[0] {
		t.Error("the layout of another program was taken")
	}
}

// TestObserveWithMapsSnapshot: the same without a stop, of a thread asleep and one on the CPU; each engine takes the
// other's.
func TestObserveWithMapsSnapshot(t *testing.T) {
	target := startTarget(t, "sleep")
	untilState(t, target.pid, 'S')
	first := mustObserve(t, target.pid, snapshot.Options{})
	second := mustObserve(t, target.pid, snapshot.Options{MapsSnapshot: first.MapsSnapshot})
	stopped := mustCapture(t, target.pid, snapshot.Options{MapsSnapshot: second.MapsSnapshot})
	if second.MapsSnapshot != first.MapsSnapshot || stopped.MapsSnapshot != first.MapsSnapshot ||
		&second.Maps[0] != &first.Maps[0] {
		t.Error("the mappings were read again")
	}
	untilState(t, target.pid, 'S')
	observed := mustObserve(t, target.pid, snapshot.Options{MapsSnapshot: stopped.MapsSnapshot})
	checkAsleep(t, &observed.Threads[0], &stopped.Threads[0])
	all := snapshot.Options{MapsSnapshot: first.MapsSnapshot, AllThreads: true}
	if s := mustObserve(t, target.pid, all); s.MapsSnapshot == first.MapsSnapshot {
		t.Error("the layout was taken for all threads")
	}
	other := startTarget(t, "sleep")
	untilState(t, other.pid, 'S')
	byFirst := snapshot.Options{MapsSnapshot: first.MapsSnapshot}
	if s := mustObserve(t, other.pid, byFirst); s.MapsSnapshot == first.MapsSnapshot {
		t.Error("the layout of another process was taken")
	}
	stat := *first.MapsSnapshot.Stat()
	stat.StackStart++
	stale := snapshot.NewMapsSnapshot(first.Maps, &stat)
	if s := mustObserve(t, target.pid, snapshot.Options{MapsSnapshot: stale}); s.MapsSnapshot == stale {
		t.Error("the layout of another program was taken")
	}
}

// TestStopsAreMuted checks that SIGCHLD comes for a child that has ended, and not for a child that stops.
func TestStopsAreMuted(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	target := startTarget(t, "sleep")
	mustCapture(t, target.pid, snapshot.Options{})
	var action sigaction
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), 0,
		uintptr(unsafe.Pointer(&action)), maskSize, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if action.flags&saNoCldStop == 0 || action.handler <= 1 {
		t.Errorf("handler 0x%x, flags 0x%x", action.handler, action.flags)
	}
	if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-signals:
	case <-time.After(patience):
		t.Error("no signal for a child that has ended")
	}
}

// TestThreadsSinceMapsSnapshot checks that a process with threads is probed before its stop although it had one thread when
// its MapsSnapshot was made.
func TestThreadsSinceMapsSnapshot(t *testing.T) {
	c := startTarget(t, "threads", "2")
	maps, err := process.Maps(c.pid)
	stat, statErr := process.ReadStat(c.pid)
	if err := errors.Join(err, statErr); err != nil {
		t.Fatal(err)
	}
	stat.Threads = 1
	o := snapshot.Options{MapsSnapshot: snapshot.NewMapsSnapshot(maps, &stat)}.WithDefaults()
	s := newSession(&captureCall{target: anyTarget(c.pid), options: o})
	defer s.arena.free()
	if err := s.prepare(); err != nil {
		t.Fatal(err)
	}
	if !s.mayHold() {
		t.Error("a process with threads is stopped without a check whether its memory can be read")
	}
}
