package probe

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"pg_stat_backtrace/ptrace/process"
)

// Cost is the processor time that one hit costs a process, without the copy of a stack. Emulated is the cost if the kernel
// emulates the probed instruction, Stepped the cost if it single-steps the instruction.
type Cost struct{ Emulated, Stepped time.Duration }

// withDefaults replaces costs that were not measured by typical values of a virtual machine.
func (c Cost) withDefaults() Cost {
	if c.Emulated <= 0 {
		c.Emulated = time.Microsecond
	}
	if c.Stepped <= 0 {
		c.Stepped = 10 * c.Emulated
	}
	return c
}

// budget keeps the cost of a session within its limit. It compares estimates, once in a window:
//
//   - A process that lives at the end of the window, and has run for 20 ms (least) or more in it, is judged by itself.
//     Its hits must not cost more than the limit's share of its processor time in the window.
//   - The hits of three other kinds of processes are judged together: processes that have ended, processes that started
//     in the window and have run for less than least, and processes without room in the kernel's table. Together these
//     hits must not cost more than the limit's share of the time of one processor, which is the length of the window.
//   - A process that started before the window and has run for less than least in it is not judged.
//
// Processes of other servers that run the same program file are judged in the same way, except in the window of their
// first hit.
//
// The cost of a hit belongs to the window in which the hit occurred. If the cost exceeds the limit, fewer hits get a
// stack in the next window. If counting alone exceeds the limit, the probes of a group are removed.
type budget struct {
	session *Session
	cost    Cost
	every   int
	filled  time.Time             // when more stacks were last allowed
	judged  time.Time             // end of the last window
	before  map[Key]Figures       // figures at that time
	others  map[tableKey]uint64   // hits of other servers' processes at the end of the last window
	times   map[int]time.Duration // processor time of each process at the end of the last window
}

const (
	refill = 100 * time.Millisecond
	// window is the time over which the cost is compared with the processor time.
	window = 500 * time.Millisecond
	// least is the processor time in a window below which a process is not judged: the cost of a few hits is no burden.
	least = 20 * time.Millisecond
	// maxEvery is the largest value of the field every. If only one hit in maxEvery gets a stack, stacks cost next to
	// nothing.
	maxEvery = 1 << 16
)

// start allows the first stacks, and begins the first window.
func (b *budget) start(s *Session) {
	*b = budget{session: s, cost: s.options.Cost.withDefaults(), every: 1, judged: time.Now()}
	s.programs.SetBudget(b.stacks(time.Second), 1)
	b.filled = time.Now()
	b.before, _ = s.Figures()
	b.times, _ = b.processorTimes(nil)
}

// stacks returns how many stacks Options.StacksPerSecond allows in the time d, at least 1.
func (b *budget) stacks(d time.Duration) int {
	n := b.session.options.StacksPerSecond
	if n <= 0 {
		n = DefaultStacks
	}
	return max(1, int(float64(n)*d.Seconds()))
}

// check allows more stacks, and once in a window compares the cost with the limit. The result over is set if the session
// must end: no traced process lives, or all probes were removed.
func (b *budget) check() (over bool, err error) {
	now := time.Now()
	if d := now.Sub(b.filled); d >= refill {
		b.filled = now
		left := max(0, b.session.programs.Budget())
		b.session.programs.SetBudget(min(left+b.stacks(d), b.stacks(time.Second)), b.every)
	}
	if now.Sub(b.judged) < window {
		return false, nil
	}
	elapsed := now.Sub(b.judged)
	b.judged = now
	if err := b.session.checkThreads(); err != nil {
		return false, err
	}
	others, err := b.session.programs.Others()
	if err != nil {
		return false, err
	}
	times, alive := b.processorTimes(others)
	if !alive {
		return true, nil
	}
	table, err := b.session.programs.Figures()
	if err != nil {
		return false, err
	}
	b.session.mu.Lock()
	figures := b.session.sums(table)
	b.session.mu.Unlock()
	if b.session.options.MaxOverhead > 0 {
		b.apply(b.judge(figures, others, times, elapsed))
	}
	if err := b.session.removeEnded(table, figures); err != nil {
		return false, err
	}
	if err := b.session.removeOthers(others); err != nil {
		return false, err
	}
	b.before, b.others, b.times = figures, others, times
	return !b.session.attached(), nil
}

// burden is the cost of a process in a window. counting is the cost of counting its hits. all is the cost of counting and
// stacks together, and groups is the same cost by group.
type burden struct {
	counting, all time.Duration
	groups        map[int]time.Duration
}

// add adds the cost of another process.
func (p *burden) add(o *burden) {
	p.counting += o.counting
	p.all += o.all
	for group, d := range o.groups {
		p.groups[group] += d
	}
}

// burdens returns the cost of each process, by process id, since the last window.
func (b *budget) burdens(
	figures map[Key]Figures, others map[tableKey]uint64, times map[int]time.Duration,
) map[int]*burden {
	stepped := make(map[int]bool)
	for i := range b.session.options.Points {
		p := &b.session.options.Points[i]
		stepped[p.Group] = stepped[p.Group] || !p.Emulated
	}
	out := make(map[int]*burden)
	pay := func(pid, group int, hits uint64, timed time.Duration) {
		each := b.cost.Emulated
		if stepped[group] {
			each = b.cost.Stepped
		}
		if b.session.options.Calls {
			each += b.cost.Emulated // the return is a trap too
		}
		p := out[pid]
		if p == nil {
			p = &burden{groups: make(map[int]time.Duration)}
			out[pid] = p
		}
		counting := time.Duration(hits) * each
		p.counting += counting
		p.all += counting + timed
		p.groups[group] += counting + timed
	}
	for key, f := range figures {
		before := b.before[key]
		pay(key.Process.PID, key.Group, f.Hits+f.Failed-before.Hits-before.Failed, time.Duration(f.Timed-before.Timed))
	}
	for key, n := range others {
		_, lives := times[key.Process.PID]
		if _, known := b.times[key.Process.PID]; known || !lives { // otherwise times has more than its processor time in the window
			pay(key.Process.PID, b.session.options.Points[key.Probe].Group, n-b.others[key], 0)
		}
	}
	return out
}

// heaviest returns the burden that is the largest share of its process's processor time, this share and the process id. The
// id 0 means all hits that are judged together (see budget). The burden is nil if no hit is judged.
func (b *budget) heaviest(
	figures map[Key]Figures, others map[tableKey]uint64, times map[int]time.Duration, elapsed time.Duration,
) (worst *burden, share float64, of int) {
	compare := func(p *burden, pid int, ran time.Duration) {
		if s := min(1, float64(p.all)/float64(ran)); s > share {
			worst, share, of = p, s, pid
		}
	}
	rest := &burden{groups: make(map[int]time.Duration)}
	for pid, p := range b.burdens(figures, others, times) {
		now, lives := times[pid]
		before, known := b.times[pid]
		if before > now {
			before, known = 0, false // a new process has the PID
		}
		switch {
		case lives && now-before >= least:
			compare(p, pid, now-before)
		case !lives || !known:
			rest.add(p)
		}
	}
	compare(rest, 0, elapsed)
	return worst, share, of
}

// judge compares the cost for the processes with their processor time in the window that has just ended. The result says how
// many hits get a stack from now on, and whether the probes of a group are to be removed.
func (b *budget) judge(
	figures map[Key]Figures, others map[tableKey]uint64, times map[int]time.Duration, elapsed time.Duration,
) Notice {
	limit := b.session.options.MaxOverhead
	n := Notice{Every: b.every}
	var worst *burden
	worst, n.Overhead, n.PID = b.heaviest(figures, others, times, elapsed)
	for key := range others {
		n.Other = n.Other || n.PID != 0 && key.Process.PID == n.PID
	}
	switch {
	case worst == nil || n.Overhead <= limit/4:
		n.Every = max(1, b.every/2)
	case n.Overhead <= limit:
	case float64(worst.counting) <= float64(worst.all)*limit/n.Overhead && b.every < maxEvery:
		n.Every = min(maxEvery, 2*b.every) // fewer stacks suffice
	default:
		n.Removed = true
		most := time.Duration(-1)
		for group, d := range worst.groups {
			if d > most {
				n.Group, most = group, d
			}
		}
	}
	return n
}

// apply carries out the decision of judge.
func (b *budget) apply(n Notice) {
	switch {
	case n.Removed:
		b.session.remove(n.Group)
		b.notify(n)
	case n.Every > b.every:
		b.notify(n)
	}
	b.every = n.Every
	b.session.programs.SetBudget(max(0, b.session.programs.Budget()), b.every)
}

func (b *budget) notify(n Notice) {
	if b.session.options.Notice != nil {
		b.session.options.Notice(n)
	}
}

// processorTimes returns the processor time of each live traced process, and of each live process in others; false if no
// traced process lives.
func (b *budget) processorTimes(others map[tableKey]uint64) (map[int]time.Duration, bool) {
	pids, err := b.session.processes()
	if err != nil {
		return nil, false
	}
	out := make(map[int]time.Duration, len(pids))
	read := func(pid int) {
		stat, err := process.ReadStat(pid)
		if err != nil || process.HasEnded(&stat) {
			return
		}
		if d, err := processorTime(pid); err == nil {
			out[pid] = d
		}
	}
	for _, pid := range pids {
		read(pid)
	}
	traced := len(out)
	for key := range others {
		if _, known := out[key.Process.PID]; !known && key.Process.PID != 0 {
			read(key.Process.PID)
		}
	}
	return out, traced > 0
}

// processorTime returns the processor time of all live threads of a process (schedstat in proc(5)).
func processorTime(pid int) (sum time.Duration, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, e.Name()))
		if err != nil {
			continue // the thread has ended
		}
		field, _, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err == nil {
			sum += time.Duration(n)
		}
	}
	return sum, nil
}
