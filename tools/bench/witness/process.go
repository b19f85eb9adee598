package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
)

// freshEvery is the number of captures that use one reading of the mappings.
const freshEvery = 50

// watched is one process that is captured until it ends.
type watched struct {
	watch  *watch
	id     identity
	parent int // 0: any
	user   int
	layout *snapshot.MapsSnapshot
	kind   string
	tally  tally
}

// run captures the process at the requested rate. The moments are random within half of the interval, so that they do
// not synchronize with other events. Late captures are made up for if they take less than a second in total. Later
// ones are left out, and counted.
func (p *watched) run(ctx context.Context) {
	began := time.Now()
	interval := time.Second / time.Duration(p.watch.options.Rate)
	next := began
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			p.end(began)
			return
		case <-timer.C:
		}
		if !p.capture(context.WithoutCancel(ctx), n) { // a running capture is completed
			p.end(began)
			return
		}
		for next = next.Add(interval); time.Since(next) > time.Second; next = next.Add(interval) {
			p.tally.late++
		}
		timer.Reset(time.Until(next) + time.Duration(float64(interval)*(rand.Float64()-0.5)))
	}
}

// capture captures once; false: the process has ended.
func (p *watched) capture(ctx context.Context, n int) bool {
	if n%freshEvery == 0 {
		p.layout = nil
		p.kind = kindOf(p.id.pid, p.parent, p.kind)
	}
	target := process.Target{PID: p.id.pid, StartTime: p.id.start, PPID: p.parent, UID: p.user}
	var err error
	if walk := p.watch.options.Walk; walk > 0 && n%walk == walk-1 {
		err = p.walk(ctx, target)
	} else {
		err = p.copy(ctx, target)
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, process.ErrExited):
		return false
	case errors.Is(err, process.ErrRecycled) && !lives(p.id):
		return false // its number belongs to another process already
	case errors.Is(err, observe.ErrNotObserved):
		p.tally.unseen(generic(err.Error())) // the caller would get this error, which may happen without a stop
		return true
	}
	p.tally.failed(reason(err))
	return true
}

// copy captures without checking the result.
func (p *watched) copy(ctx context.Context, target process.Target) error {
	o := snapshot.Options{MapsSnapshot: p.layout}
	engine := ptrace.Capture
	if p.watch.options.Engine != snapshot.EngineStop {
		engine = observe.Observe
	}
	snap, err := engine(ctx, target, o)
	if err != nil {
		return err
	}
	p.layout = snap.MapsSnapshot
	p.tally.captured(snap.Engine, snap.Pause)
	return nil
}

// walk captures, unwinds and names.
func (p *watched) walk(ctx context.Context, target process.Target) error {
	o := capture.Options{NonStop: p.watch.options.Engine != snapshot.EngineStop}
	t, err := p.watch.capturer.Capture(ctx, target, o)
	if err != nil {
		return err
	}
	p.tally.captured(t.Engine, t.Pause)
	p.tally.walked++
	if thread := &t.Threads[0]; thread.Whole {
		p.tally.whole++
	} else {
		p.tally.cut(t.Engine + ", " + generic(thread.Stop))
	}
	return nil
}

// generic removes the numbers from a text, so that equal reasons are counted together.
func generic(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r >= '0' && r <= '9' }), "N")
}

// reason describes a failure so that equal ones are counted together.
func reason(err error) string {
	var denied *process.PermissionError
	var traced *process.TracedError
	var late *ptrace.DeadlineError
	switch {
	case errors.As(err, &denied):
		return "refused: " + string(denied.Reason)
	case errors.As(err, &traced):
		return "traced by " + traced.Name
	case errors.As(err, &late):
		return fmt.Sprintf("deadline, state %c", late.State)
	case errors.Is(err, process.ErrRecycled):
		return "taken for another process"
	}
	return generic(err.Error())
}

// end counts how long the process has lived, and whether it was left stopped or traced.
func (p *watched) end(began time.Time) {
	p.tally.lived = time.Since(began)
	var left []string
	if lives(p.id) {
		left = leftBehind(p.id.pid)
	}
	p.watch.figures.add(p.kind, &p.tally, left)
}

// leftBehind returns the threads of a process that are stopped or traced. Other programs could have stopped them, but
// should not do so here.
func leftBehind(pid int) (left []string) {
	tids, err := process.Threads(pid)
	if err != nil {
		return nil
	}
	for _, tid := range tids {
		status, err := process.ReadTaskStatus(pid, tid)
		if err == nil && (status.TracerPID != 0 || status.State == 'T' || status.State == 't') {
			left = append(left, fmt.Sprintf("thread %d (%s): state %c, tracer %d",
				tid, status.Name, status.State, status.TracerPID))
		}
	}
	return left
}

// kinds are a server's processes other than backends, by the beginnings of their titles.
var kinds = []string{
	"archiver", "autovacuum launcher", "autovacuum worker", "background writer", "checkpointer",
	"logger", "logical replication launcher", "logical replication worker", "parallel worker", "startup", "walreceiver",
	"walsender", "walwriter",
}

// kindOf returns the kind of a process by its title, or the kind known before if the title cannot be read.
func kindOf(pid, parent int, before string) string {
	if parent == 0 {
		return "postmaster"
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return before
	}
	title := strings.TrimRight(string(text), "\x00 ")
	_, role, ok := strings.Cut(title, "postgres: ")
	if !ok {
		return "starting" // it still has the postmaster's title
	}
	for _, kind := range kinds {
		if strings.HasPrefix(role, kind) {
			return kind
		}
	}
	return "backend"
}
