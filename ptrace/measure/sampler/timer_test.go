package sampler

import (
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// noProcess is a TID that no process has: it is gone.
const noProcess = 1 << 30

// tick lets the timer run until it has done enough.
func tick(t *testing.T, p *processor, enough func() bool) {
	t.Helper()
	if err := p.Start(quick, time.Hour); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if enough() {
			break
		}
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
}

// readable reports whether the descriptor becomes readable.
func readable(t *testing.T, p *processor, wait time.Duration) bool {
	t.Helper()
	for deadline := time.Now().Add(wait); ; {
		fds := []unix.PollFd{{Fd: int32(p.Descriptor()), Events: unix.POLLIN}}
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

// whole is a target whose whole stack is copied.
func whole(t *testing.T, pid int) rawTarget {
	t.Helper()
	return rawTarget{TID: uint32(pid), StackEnd: stackEnd(t, pid), MaxStack: MaxStack, RedZone: 128}
}

// TestTimerOneMoment: registers and stack of a process that is interrupted are of one moment. There are as many samples
// as there is room for.
func TestTimerOneMoment(t *testing.T) {
	const number = 0
	p := open(t, number)
	pid, places := counts(t)
	const target = 2 // the others are no thread's, or gone
	*p.Target(1) = rawTarget{TID: noProcess, StackEnd: 1 << 20, MaxStack: MaxStack}
	*p.Target(target) = whole(t, pid)
	p.Aim(target + 1)
	m := moments{places: places}
	total := 0
	for round := range 3 {
		tick(t, p, func() bool { return !p.Room() && p.state.numSamples > MaxSamples })
		samples := p.Samples()
		if p.Room() || p.Missed() == 0 {
			t.Fatalf("round %d: %d samples, %d missed", round, len(samples), p.Missed())
		}
		for i := range samples {
			s := &samples[i]
			if s.Outcome == outcomeNone {
				continue // there was no more room for its stack
			}
			total++
			if s.Outcome != outcomeRead || s.Target != target || s.State != 0 || s.StackStart+s.StackLength != s.StackEnd {
				t.Fatalf("sample %d: %+v", i, s)
			}
			m.compare(t, s, p.Stack(s))
		}
		if p.Target(1).Gone == 0 || p.AllGone() || !readable(t, p, 0) {
			t.Error("a process that has exited was not reported")
		}
		if p.Reset(); !p.Room() {
			t.Error("no room after all was forgotten")
		}
	}
	if m.seen < total*8/10 || total == 0 {
		t.Errorf("%d samples, of %d moments only", total, m.seen)
	}
	p.Target(target).Gone = 1
	if !p.AllGone() {
		t.Error("not all are gone, and no other target is a thread's")
	}
}

// TestTimerFull: when there is no more room each interrupt of a target makes the descriptor readable.
func TestTimerFull(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("on one processor the process waits whenever the test looks")
	}
	const number = 0
	p := open(t, number)
	pid, _ := counts(t)
	*p.Target(0) = whole(t, pid)
	p.Aim(1)
	if err := p.Start(quick, time.Hour); err != nil {
		t.Fatal(err)
	}
	pin(t, number+1) // the timer stays
	for deadline := time.Now().Add(3 * time.Minute); p.Room(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there is room after a minute: %d samples, %d missed, %+v", len(p.Samples()), p.Missed(), p.Target(0))
		}
	}
	full := 0
	for range 100 {
		p.Seen()
		p.Target(0).Wanted = 0
		if !readable(t, p, time.Minute) {
			t.Fatal("an interrupt did not report that there is no room")
		}
		if p.Target(0).Wanted == 0 { // else it waited for the processor, and that was reported
			full++
		}
	}
	if full == 0 {
		t.Error("no interrupt of the running process reported that there is no room")
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if n := len(p.Samples()); n > MaxSamples || len(p.Stacks()) > len(p.area) {
		t.Errorf("%d samples, %d bytes of stacks", n, len(p.Stacks()))
	}
}

// TestTimerSignals: a thread that returns from a signal is not sampled.
func TestTimerSignals(t *testing.T) {
	const number = 0
	const signalReturn = unix.SYS_RT_SIGRETURN
	p := open(t, number)
	program := exec.Command(compile(t, "signals"))
	var ready string
	startTold(t, program, &ready)
	pid := program.Process.Pid
	bind(t, pid, number)
	calls := make(map[uint64]int)
	returning := 0
	for deadline := time.Now().Add(3 * time.Minute); returning < 10 && time.Now().Before(deadline); p.Reset() {
		*p.Target(0) = whole(t, pid)
		p.Aim(1)
		tick(t, p, func() bool { return len(p.Samples())+p.Missed() >= 50 })
		for _, s := range p.Samples() {
			if s.Outcome == outcomeRead {
				calls[s.Registers[systemCall]]++
			}
		}
		if p.Room() {
			returning += p.Missed()
		}
	}
	if calls[unix.SYS_KILL] == 0 || returning == 0 || calls[signalReturn] != 0 {
		t.Errorf("samples in system calls: %v; %d missed", calls, returning)
	}
}

// TestTimerWantsSleeper: a sleeper is wanted by the timer of the processor that it belongs to, and read by a call. The
// sample then counts again without a call, until the process has run. A target that is not wanted is not read.
func TestTimerWantsSleeper(t *testing.T) {
	pid := startSleep(t)
	found := 0
	for number := range runtime.NumCPU() {
		p := open(t, number)
		*p.Target(1) = whole(t, pid)
		p.Aim(2)
		wanted := reports(t, p, nil)
		for range 2 {
			if errno := p.ReadWanted(); errno != 0 || p.Target(1).Wanted != 0 {
				t.Errorf("%v, %+v", errno, p.Target(1))
			}
		}
		if !wanted {
			if n := len(p.Samples()); n != 0 || p.Missed() != 0 {
				t.Errorf("%d samples, %d missed of a process that belongs elsewhere", n, p.Missed())
			}
			continue
		}
		found++
		bind(t, pid, number)
		compareAgain(t, p, pid)
	}
	if found != 1 {
		t.Errorf("the timers of %d processors wanted it", found)
	}
}

// TestTimerLooksWait: the looks at a sleeper that wait for a call all count in its sample, except looks from before it
// ran, which are missed.
func TestTimerLooksWait(t *testing.T) {
	const number, many = 0, 1000
	p := open(t, number)
	pid := startSleep(t)
	bind(t, pid, number)
	wake(t, pid) // from then on it belongs to that processor
	awaitSleep(t, pid)
	*p.Target(0) = whole(t, pid)
	p.Aim(1)
	wanted := func() bool { return p.Target(0).Wanted >= many }
	tick(t, p, wanted)
	looks := p.Target(0).Wanted
	if errno := p.ReadWanted(); errno != 0 || len(p.Samples()) != 1 || p.Samples()[0].Times != looks || p.Missed() != 0 {
		t.Fatalf("%v: of %d looks %+v, %d missed", errno, looks, p.Samples(), p.Missed())
	}
	wake(t, pid)
	tick(t, p, wanted)
	before := p.Target(0).Wanted
	wake(t, pid)
	tick(t, p, func() bool { return p.Missed() >= int(before) })
	after := p.Target(0).Wanted
	if p.Missed() < int(before) || after == 0 || after >= before {
		t.Errorf("%d looks before it ran, %d after, %d missed", before, after, p.Missed())
	}
	if errno := p.ReadWanted(); errno != 0 {
		t.Fatal(errno)
	}
	if last := p.Samples()[len(p.Samples())-1]; last.Outcome != outcomeRead || last.Times != after {
		t.Errorf("of %d looks after it ran: %+v", after, last)
	}
}

// compareAgain checks how the sample of a process that sleeps counts: until it has run.
func compareAgain(t *testing.T, p *processor, pid int) {
	t.Helper()
	const least = 100 // of some 300
	if reports(t, p, nil) || len(p.Samples()) != 1 {
		t.Fatalf("of a process that slept: %+v", p.Samples())
	}
	first := p.Samples()[0]
	if first.Outcome != outcomeRead || first.Target != 1 || first.State == 0 || first.Times < least {
		t.Errorf("of a process that slept: %+v", first)
	}
	if !reports(t, p, func() { wake(t, pid) }) || p.Target(1).Wanted == 0 {
		t.Errorf("of a process that was woken: %+v", p.Target(1))
	}
	if errno := p.ReadWanted(); errno != 0 {
		t.Fatal(errno)
	}
	var last rawSample // a timer may have met it while it ran
	for _, s := range p.Samples() {
		if s.Outcome == outcomeRead {
			last = s
		}
	}
	if last.Started != first.Started || last.StackStart != first.StackStart || last.Times >= least ||
		p.Samples()[0].Times < first.Times {
		t.Errorf("of a process that was woken: %+v, before %+v", p.Samples(), first)
	}
	for range 10 { // on a busy machine the process may have run after the call
		known := len(p.Samples())
		if !reports(t, p, nil) && len(p.Samples()) == known {
			return
		}
		if errno := p.ReadWanted(); errno != 0 {
			t.Fatal(errno)
		}
	}
	t.Errorf("of a process that sleeps again: %+v", p.Samples())
}

// reports lets the timer run, once a millisecond, and reports whether the descriptor becomes readable within 0.3 s.
func reports(t *testing.T, p *processor, meanwhile func()) bool {
	t.Helper()
	p.Seen()
	if err := p.Start(time.Millisecond, time.Hour); err != nil {
		t.Fatal(err)
	}
	if meanwhile != nil {
		meanwhile()
	}
	told := readable(t, p, 300*time.Millisecond)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if p.Seen(); readable(t, p, 0) {
		t.Error("it is readable after all was seen")
	}
	return told
}

// startReporting aims at a process that does not exist, and starts the timer: each interrupt makes the descriptor
// readable after again.
func startReporting(t *testing.T, p *processor, period, most time.Duration) {
	t.Helper()
	again(p)
	p.Aim(1)
	if err := p.Start(period, most); err != nil {
		t.Fatal(err)
	}
}

func again(p *processor) { p.Seen(); *p.Target(0) = rawTarget{TID: noProcess} }

// TestTimerPeriod: the timer fires as often as it should, at intervals of half the period to one and a half, and not
// after it was stopped. On a busy machine the test learns of an interrupt late. So intervals that are too long, or too
// even, are measured again. Interrupts that come too early are an error at once: no load causes them.
func TestTimerPeriod(t *testing.T) {
	p := open(t, 0)
	const period = 20 * time.Millisecond
	startReporting(t, p, period, time.Hour)
	for begin := time.Now(); ; {
		intervals, mean := measureIntervals(t, p)
		n := len(intervals)
		median := intervals[n/2]
		if mean < period*8/10 {
			t.Fatalf("mean %v of %v", mean, intervals)
		}
		if median >= period*7/10 && median <= period*13/10 &&
			intervals[n/10] <= period*9/10 && intervals[n*9/10] >= period*11/10 {
			break
		}
		if time.Since(begin) > 2*time.Minute {
			t.Fatalf("mean %v, median %v, of %v", mean, median, intervals)
		}
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	again(p)
	if readable(t, p, 5*period) {
		t.Error("it fires after it was stopped")
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
}

// measureIntervals returns the sorted times between interrupts, and their mean.
func measureIntervals(t *testing.T, p *processor) (intervals []time.Duration, mean time.Duration) {
	t.Helper()
	const ticks = 50
	first := time.Now()
	for last := first; len(intervals) < ticks; {
		if !readable(t, p, time.Minute) {
			t.Fatalf("it fired %d times", len(intervals))
		}
		again(p)
		now := time.Now()
		intervals = append(intervals, now.Sub(last))
		last = now
	}
	mean = time.Since(first) / ticks
	slices.Sort(intervals)
	return intervals, mean
}

// TestTimerRestarted: stops and starts within a period do not change how often a timer fires.
func TestTimerRestarted(t *testing.T) {
	p := open(t, 0)
	const period = 20 * time.Millisecond
	ticks, went := 0, time.Duration(0)
	for went < 150*period {
		began := time.Now()
		startReporting(t, p, period, time.Hour)
		time.Sleep(period / 5)
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		went += min(time.Since(began), period/2) // in which there is one interrupt, seldom two
		if readable(t, p, 0) {
			ticks++
		}
	}
	if expected := int(went / period); ticks < expected/2 || ticks > expected*2 {
		t.Errorf("%d interrupts in %v, of a period of %v", ticks, went, period)
	}
}

// TestTimerMost: it stops in time although the program does not stop it, and runs again when it is started again.
func TestTimerMost(t *testing.T) {
	p := open(t, 0)
	const period, most = time.Millisecond, 300 * time.Millisecond
	for range 2 {
		began := time.Now()
		startReporting(t, p, period, most)
		ticks, last := 0, time.Duration(0)
		for ; last <= 5*most && readable(t, p, 10*most); ticks++ {
			again(p)
			last = time.Since(began)
		}
		if ticks < 10 || last > 5*most { // the test may look late
			t.Errorf("%d interrupts, the last after %v", ticks, last)
		}
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}
