package bpf

import (
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openClock makes a reader with a clock on a processor, or says why there is none.
//
// The test is bound to the processor.
func openClock(t *testing.T, processor int) (*Reader, *Clock) {
	t.Helper()
	r := open(t)
	k, err := Host(1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := k.Clock(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	pin(t, processor)
	return r, c
}

// tick lets a clock go for so many notes, or a while.
func tick(t *testing.T, c *Clock, notes int) {
	t.Helper()
	if err := c.Start(200*time.Microsecond, time.Hour); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if noted, missed := c.Noted(); noted+missed >= notes {
			break
		}
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
}

// readable reports whether the clock says that somebody is to be read.
func readable(t *testing.T, c *Clock, wait time.Duration) bool {
	t.Helper()
	for deadline := time.Now().Add(wait); ; {
		fds := []unix.PollFd{{Fd: int32(c.Descriptor()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			t.Fatal(err)
		default:
			return n > 0
		}
	}
}

// TestClockOneMoment: registers and stack of a process that is interrupted are of one moment, and as many are noted as
// there is room for.
func TestClockOneMoment(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is in x86_64's assembly")
	}
	const processor = 0
	r, c := openClock(t, processor)
	pid, places := counts(t, processor)
	const target = 2 // others are nobody's
	*r.Slot(1) = Slot{PID: 1 << 30, End: 1 << 20, Most: MaxStack}
	*r.Slot(target) = Slot{PID: uint32(pid), End: stackEnd(t, pid), Most: MaxStack, RedZone: 128}
	r.Aim(target+1, processor)
	m := moments{reader: r, places: places}
	total := 0
	for round := range 3 {
		tick(t, c, maxNoted+5)
		noted, missed := c.Noted()
		if noted != maxNoted && c.Room() || missed == 0 {
			t.Fatalf("round %d: %d noted, %d missed", round, noted, missed)
		}
		total += noted
		for i := range noted {
			s := c.Note(i)
			if s.Outcome != Read || s.Other != target || s.State != 0 || s.Start+s.Length != s.End {
				t.Fatalf("note %d: %+v", i, s)
			}
			m.compare(t, s, c.Stacks()[s.At:][:s.Length])
		}
		if r.Slot(1).Wanted == 0 || !readable(t, c, 0) || r.request.wake == 0 {
			t.Error("nobody was told that a process has ended")
		}
		if c.Empty(); !c.Room() {
			t.Error("no room after all was forgotten")
		}
	}
	if m.read < total*8/10 || total == 0 {
		t.Errorf("%d notes, of %d moments only", total, m.read)
	}
}

// TestClockFull: when there is no more room, each tick says so, even if nobody has to be read.
func TestClockFull(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("on one processor the process waits whenever this looks")
	}
	const processor = 0
	r, c := openClock(t, processor)
	pid, _ := counts(t, processor)
	*r.Slot(0) = Slot{PID: uint32(pid), End: stackEnd(t, pid), Most: MaxStack}
	r.Aim(1, processor)
	if err := c.Start(200*time.Microsecond, time.Hour); err != nil {
		t.Fatal(err)
	}
	pin(t, processor+1) // the clock stays
	for deadline := time.Now().Add(time.Minute); c.Room(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			noted, missed := c.Noted()
			t.Fatalf("there is room after a minute: %d noted, %d missed, %+v", noted, missed, r.Slot(0))
		}
	}
	const looks = 100
	said := 0
	for range looks {
		time.Sleep(time.Millisecond)
		said += int(r.request.wake)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if said < looks*9/10 || !readable(t, c, 0) {
		t.Errorf("at %d of %d looks the last tick had said that there is no room", said, looks)
	}
}

// TestClockSignals: a thread that is returning from a signal is not noted.
func TestClockSignals(t *testing.T) {
	const processor = 0
	r, c := openClock(t, processor)
	program := exec.Command(compile(t, "signals"))
	var ready string
	startTold(t, program, &ready)
	pid := program.Process.Pid
	bind(t, pid, processor)
	*r.Slot(0) = Slot{PID: uint32(pid), End: stackEnd(t, pid), Most: MaxStack}
	r.Aim(1, processor)
	calls := make(map[uint64]int)
	total, returning := 0, 0
	for deadline := time.Now().Add(time.Minute); returning < 10 && time.Now().Before(deadline); c.Empty() {
		tick(t, c, 50)
		noted, missed := c.Noted()
		for i := range noted {
			calls[c.Note(i).Registers[systemCall]]++
		}
		if c.Room() {
			returning += missed
		}
		total += noted
	}
	if calls[unix.SYS_KILL] == 0 || returning == 0 || calls[signalReturn] != 0 {
		t.Errorf("of %d notes in system calls: %v; %d were none", total, calls, returning)
	}
}

// TestClockNotesSleeper: who sleeps is noted where it belongs, and counted again then, until it runs.
func TestClockNotesSleeper(t *testing.T) {
	pid := startSleep(t)
	awaitSleep(t, pid)
	found := 0
	for processor := range runtime.NumCPU() {
		r, c := openClock(t, processor)
		needDirect(t, c)
		*r.Slot(1) = Slot{PID: uint32(pid), End: stackEnd(t, pid), Most: MaxStack, RedZone: 128}
		r.Aim(2, processor)
		if told(t, c, nil) {
			t.Errorf("processor %d: there is somebody to be read: %+v", processor, r.Slot(1))
		}
		if noted, _ := c.Noted(); noted == 0 {
			continue
		}
		found++
		bind(t, pid, processor)
		const least = 100 // of some 300
		if noted, missed := c.Noted(); noted != 1 || missed != 0 || c.Note(0).Again < least || c.Note(0).Other != 1 {
			t.Errorf("%d noted, %d missed of one that sleeps: %+v", noted, missed, c.Note(0))
		}
		first := *c.Note(0)
		wake(t, pid)
		if told(t, c, nil) {
			t.Errorf("of one that was woken there is something to be read: %+v", r.Slot(1))
		}
		if noted, _ := c.Noted(); noted < 2 || c.Note(noted-1).Again < least || c.Note(0).Again < first.Again ||
			c.Note(noted-1).Switches <= first.Switches || first.State == 0 || c.Note(noted-1).Start != first.Start {
			t.Errorf("%d noted of one that was woken: %+v, before %+v", noted, c.Note(noted-1), first)
		}
	}
	if found != 1 {
		t.Errorf("it was seen by %d clocks", found)
	}
}

// wake has a sleeper run for a moment: what ends a stop ends the sleep, which the kernel goes on with.
func wake(t *testing.T, pid int) {
	t.Helper()
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
		if err := unix.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClockWants: who sleeps is to be read by a call if it cannot be in an interrupt, on the processor where it
// belongs, and is counted again then, until it runs; who is not wanted is not read.
func TestClockWants(t *testing.T) {
	pid := startSleep(t)
	awaitSleep(t, pid)
	at := -1
	for processor := range runtime.NumCPU() {
		r, c := openClock(t, processor)
		c.notes.direct = 0
		s := r.Slot(0)
		*s = Slot{PID: uint32(pid), End: stackEnd(t, pid), Most: MaxStack, RedZone: 128}
		r.Aim(1, processor)
		want := Unwanted
		if told(t, c, nil) {
			at, want = processor, Read
		}
		for range 2 {
			if errno := r.Read(1, processor); errno != 0 || s.Outcome != want || s.Wanted != 0 {
				t.Errorf("processor %d, wanted %v: %v, %+v", processor, want == Read, errno, s)
			}
			want = Unwanted
		}
		if at == processor {
			bind(t, pid, processor)
			compareAgain(t, r, c, pid)
		}
		if noted, missed := c.Noted(); noted != 0 || missed != 0 {
			t.Errorf("%d noted, %d missed of a process that sleeps", noted, missed)
		}
	}
	if at < 0 {
		t.Error("no clock has seen the process")
	}
}

// compareAgain looks what becomes of a process that has just been read: it is counted until it has run.
func compareAgain(t *testing.T, r *Reader, c *Clock, pid int) {
	t.Helper()
	s := r.Slot(0)
	const least = 100 // of some 300
	if told(t, c, nil) || s.Again < least || s.Known == 0 {
		t.Errorf("of one that slept on: %+v", s)
	}
	again := s.Again
	if !told(t, c, func() { wake(t, pid) }) {
		t.Errorf("of one that was woken: %+v", s)
	}
	if errno := r.Read(1, int(r.request.processor)); errno != 0 || s.Before < again || s.Again != 0 {
		t.Errorf("of one that was woken: %v, %+v, counted %d times before", errno, s, again)
	}
}

// told lets a clock go, once a millisecond, and reports whether it says within a while that somebody is to be read.
func told(t *testing.T, c *Clock, meanwhile func()) bool {
	t.Helper()
	c.Seen()
	if err := c.Start(time.Millisecond, time.Hour); err != nil {
		t.Fatal(err)
	}
	if meanwhile != nil {
		meanwhile()
	}
	told := readable(t, c, 300*time.Millisecond)
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if c.Seen(); readable(t, c, 0) {
		t.Error("there is more to be seen than was")
	}
	return told
}

// TestClockPeriod: it goes off as often as it should, at intervals of half the period to one and a half, and not
// after it was stopped.
func TestClockPeriod(t *testing.T) {
	const processor = 0
	r, c := openClock(t, processor)
	*r.Slot(0) = Slot{PID: 1 << 30} // nobody: each tick says that
	r.Aim(1, processor)
	const period = 20 * time.Millisecond
	if err := c.Start(period, time.Hour); err != nil {
		t.Fatal(err)
	}
	const ticks = 50
	intervals := make([]time.Duration, 0, ticks)
	for last := time.Now(); len(intervals) < ticks; {
		if !readable(t, c, time.Minute) {
			t.Fatalf("it stands still after %d ticks", len(intervals))
		}
		c.Seen()
		now := time.Now()
		intervals = append(intervals, now.Sub(last))
		last = now
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(intervals)
	var sum time.Duration
	for _, i := range intervals {
		sum += i
	}
	// On a busy machine who waits learns of a tick late, and of the next one so much earlier.
	mean, median := sum/ticks, intervals[ticks/2]
	if mean < period*8/10 || median < period*7/10 || median > period*13/10 ||
		intervals[ticks/10] > period*9/10 || intervals[ticks*9/10] < period*11/10 {
		t.Errorf("mean %v, median %v, of %v", mean, median, intervals)
	}
	c.Seen()
	if readable(t, c, 5*period) {
		t.Error("it goes on after it was stopped")
	}
	if err := c.Stop(); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
}

// TestClockRestarted: one that never goes for as long as a period goes off as often as one that is never stopped.
func TestClockRestarted(t *testing.T) {
	const processor = 0
	r, c := openClock(t, processor)
	*r.Slot(0) = Slot{PID: 1 << 30} // nobody: each tick says that
	r.Aim(1, processor)
	const period = 20 * time.Millisecond
	ticks, went := 0, time.Duration(0)
	for went < 150*period {
		began := time.Now()
		if err := c.Start(period, time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(period / 5)
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		went += min(time.Since(began), period/2) // in which there is one tick, seldom two
		if readable(t, c, 0) {
			ticks++
		}
		c.Seen()
	}
	if expected := int(went / period); ticks < expected/2 || ticks > expected*2 {
		t.Errorf("%d ticks in %v, of a period of %v", ticks, went, period)
	}
}

// TestClockMost: it stands still in time although nobody stops it, and goes again when it is started again.
func TestClockMost(t *testing.T) {
	const processor = 0
	r, c := openClock(t, processor)
	*r.Slot(0) = Slot{PID: 1 << 30} // nobody: each tick says that
	r.Aim(1, processor)
	const period, most = time.Millisecond, 100 * time.Millisecond
	for range 2 {
		began := time.Now()
		if err := c.Start(period, most); err != nil {
			t.Fatal(err)
		}
		ticks, last := 0, time.Duration(0)
		for ; last <= 5*most && readable(t, c, 10*most); ticks++ {
			c.Seen()
			last = time.Since(began)
		}
		if ticks < 10 || last > 5*most { // who looks may be late
			t.Errorf("%d ticks, the last after %v", ticks, last)
		}
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}
