package worker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/store"
)

// RecordConfig says whether and where the worker records the history of the server.
type RecordConfig struct {
	// Period is the time between two sweeps; 0: nothing is recorded.
	Period time.Duration
	// Dir is the state directory; empty: nothing is recorded.
	Dir string
	// Shared is set if Size is the limit for Dir and the folders beside it together. This is so on a host with several workers:
	// each records to the folder of its user.
	Shared bool
	// Keep, Size and MinFree limit the history; see store.Options. 0: the defaults of package store.
	Keep          time.Duration
	Size, MinFree int64
	// Texts says which query texts are kept: off, normalized or all; empty: normalized.
	Texts string
	// Redact names the roles whose query texts are not kept.
	Redact []string
	// Stacks is set if stacks are recorded.
	Stacks bool
	// Rules is a file with changes of the rules; empty: the built-in rules, RulesOff: none.
	Rules string
	// Reload makes the worker read Rules again, as SIGHUP does; nil: only SIGHUP does.
	Reload <-chan struct{}
	// RulesOptional makes a worker start with the built-in rules if the file Rules cannot be used. It is for a host on which one
	// file is for all servers: an error in this file must not leave a new server without a worker.
	RulesOptional bool
}

// The bounds of RecordConfig.Period.
const (
	minRecordPeriod = 100 * time.Millisecond
	maxRecordPeriod = time.Minute
)

// RecordTexts returns the allowed values of RecordConfig.Texts.
func RecordTexts() []string {
	return []string{string(recorder.TextsOff), string(recorder.TextsNormalized), string(recorder.TextsAll)}
}

// Check returns an error if an option has a wrong value. It reads no file.
func (c *RecordConfig) Check() error {
	switch {
	case c.Period != 0 && (c.Period < minRecordPeriod || c.Period > maxRecordPeriod):
		return fmt.Errorf("--record must be off, or a time from %s to %s", minRecordPeriod, maxRecordPeriod)
	case c.Dir != "" && !filepath.IsAbs(c.Dir):
		return errors.New("--record-dir must be an absolute path")
	case c.Keep < 0 || c.Size < 0 || c.MinFree < 0:
		return errors.New("--record-keep, --record-size and --record-min-free must be positive")
	case c.Rules != "" && c.Rules != RulesOff && !filepath.IsAbs(c.Rules):
		return errors.New("--rules must be off, or an absolute path")
	case c.Texts != "" && !slices.Contains(RecordTexts(), c.Texts):
		return fmt.Errorf("--record-query-text must be off, normalized or all, not %q", c.Texts)
	}
	return nil
}

// To returns the directory to which the worker records; empty: it records nothing.
func (c *RecordConfig) To() string {
	if c.Period == 0 {
		return ""
	}
	return c.Dir
}

// takeStack returns the stack of a process without stopping it.
func (w *Worker) takeStack(ctx context.Context, pid int, limit time.Duration) (*recorder.Stack, error) {
	c, err := w.current()
	if err != nil {
		return nil, err
	}
	return recorder.TakeStack(ctx, w.capturer, c, pid, limit)
}

// takePlan says in words what the plan of a process does now. It does not stop the process.
func (w *Worker) takePlan(ctx context.Context, pid int) (string, error) {
	c, err := w.current()
	if err != nil {
		return "", err
	}
	return recorder.TakePlan(ctx, w.capturer, c, w.verbs.PlanProof, pid)
}

// record records the history until ctx ends.
func (w *Worker) record(ctx context.Context) {
	c := &w.cfg.Record
	switch {
	case c.Period == 0:
		return
	case c.Dir == "":
		w.log.Info().Msg("no history is recorded; to record it, give a directory with --record-dir")
		return
	}
	o := recorder.Options{
		Store:   store.Options{Dir: c.Dir, Keep: c.Keep, Size: c.Size, MinFree: c.MinFree, Shared: c.Shared},
		DataDir: w.server().DataDir, Server: w.current, Period: c.Period, Texts: recorder.Texts(c.Texts), Redact: c.Redact,
		Redacted: &w.redacted,
		Version:  w.cfg.Version, Log: w.log, Progress: &w.recorded,
	}
	if c.Stacks {
		o.TakeStack, o.TakePlan = w.takeStack, w.takePlan
	}
	watcher, err := w.newWatcher()
	if err != nil { // unlikely: the file of rules was read without an error when the worker started
		w.log.Error().Err(err).Msg("there are no rules")
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if watcher != nil {
		watcher.remember()
		o.Watch, o.Next = watcher.look, watcher.engine.Next
		wg.Go(func() { watcher.run(ctx) })
	}
	recorder.New(o).Run(ctx)
}
