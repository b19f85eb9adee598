package measurecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/units"
)

// checkStacks validates --stacks, and the flags together with it.
func (f *waitsFlags) checkStacks() error {
	if f.stacks == "" {
		return nil
	}
	if _, err := waitevent.ParseStacks(f.stacks); err != nil {
		return fmt.Errorf("--stacks: %w", err)
	}
	method := waits.Method(f.method)
	switch {
	case method != waits.Auto && method != waits.Exact:
		return fmt.Errorf("--stacks needs --method exact, not %s", f.method)
	case f.trace > 0:
		return errors.New("give either --stacks or --trace, not both")
	case !slices.Contains(profilefmt.Formats(), f.format):
		return fmt.Errorf("--format must be one of %s with --stacks, not %q", strings.Join(profilefmt.Formats(), ", "),
			f.format)
	case f.top < 1:
		return fmt.Errorf("--top must be at least 1, not %d", f.top)
	}
	return nil
}

// maxStackRate is the largest number of stacks that may be copied per second. Each copy costs the server some microseconds, so
// this number costs a twentieth of a processor.
const maxStackRate = 10_000

// stackRate counts the stacks that are copied per second.
type stackRate struct {
	since time.Time
	count int
	over  bool // more than maxStackRate were copied in a second
}

func (r *stackRate) add(n int, now time.Time) (over bool) {
	if now.Sub(r.since) >= time.Second {
		r.since, r.count = now, 0
	}
	r.count += n
	r.over = r.over || r.count > maxStackRate
	return r.over
}

// printStacks collects the stacks of waits, and prints them by wait event. It ends early if there are more than maxStackRate a
// second.
func (f *waitsFlags) printStacks(
	ctx context.Context, server *waitevent.Server, provider waits.Provider, o waits.Options, stdout, stderr io.Writer,
) error {
	stacker, ok := provider.(waits.Stacker)
	if !ok {
		return fmt.Errorf("the method %s copies no stacks", provider.Info().Method)
	}
	capturer, err := capture.New(capture.Config{LinesWait: console.LinesWait, AwaitNames: true, Kept: buildcache.Own})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	collected, began, rate := server.NewStackProfile(capturer, o.Stacks), time.Now(), stackRate{}
	defer collected.Watch()()
	log := openLog(server)
	take := func() {
		look(log)
		list, unnamed := stacker.Stacks()
		if rate.add(len(list)+unnamed, time.Now()) {
			cancel()
		}
		if len(o.Keep) > 0 {
			list = slices.DeleteFunc(list, func(s waits.Stack) bool { return !slices.Contains(o.Keep, s.PID) })
		}
		collected.Add(list, unnamed)
	}
	f.wait(ctx, stderr, take)
	take()
	took := time.Since(began)
	snapshot, err := provider.Snapshot()
	if err != nil {
		return err
	}
	if log != nil {
		collected.SetTexts(log.Texts())
		collected.SetBackendTypes(log.BackendType)
	}
	var notes []string
	if rate.over {
		notes = append(notes, fmt.Sprintf("ended after %s: more than %d stacks a second cost too much",
			took.Round(time.Millisecond), maxStackRate))
		console.Tellf(stderr, "the measurement ended after %s: there were more than %d stacks a second\n"+
			"  Take the stacks of fewer waits with --stacks 1/N, or of longer ones.", took.Round(time.Millisecond), maxStackRate)
	}
	if n := snapshot.Lost.Stacks; n > 0 {
		notes = append(notes, units.Plural(n, "%d {stack was|stacks were} not copied: there was no room, or {it was|they were} not readable"))
	}
	if collected.Unnamed > 0 {
		notes = append(notes, units.Plural(collected.Unnamed, "%d {stack is of a process|stacks are of processes} that had ended"))
	}
	if collected.Joined > 0 {
		notes = append(notes, units.Plural(collected.Joined,
			"%d {stack is not shown, only its|stacks are not shown, only their} time: there were too many different stacks"))
	}
	if note := backtrace.GeneratedNote(collected.Generated, collected.Count); note != "" {
		notes = append(notes, note)
	}
	what := whichWaits(o)
	if collected.Count == 0 {
		return fmt.Errorf("no stack %s in %s", what, took.Round(time.Millisecond))
	}
	stacks := units.Count(collected.Count, "stack")
	if collected.Count == 1 {
		stacks = "1 stack"
	}
	info := provider.Info()
	return profilefmt.Write(stdout, collected.Profile(took), profilefmt.Options{
		Format: f.format, Title: "Waits of " + server.Cluster.String(), Top: f.top, Notes: notes,
		Subtitle: fmt.Sprintf("%s %s; method %s (%s). %s", stacks, what, info.Method, info.Mechanism,
			waitevent.Sees(info)),
		Root: []string{"wait_event_type", "wait_event", waitevent.LabelPhrase},
	})
}

// whichWaits says of which waits the stacks were taken.
func whichWaits(o waits.Options) string {
	switch n := o.Stacks.Every; {
	case n == 1:
		return "of all waits"
	case n > 1:
		return fmt.Sprintf("of one in %d waits, each counted %s", n, units.Count(n, "time"))
	}
	return fmt.Sprintf("of waits of at least %s", o.Stacks.Longer)
}
