package worker

import (
	"fmt"
	"slices"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/measure/waitevent"
)

// WaitConfig says whether and how the worker times wait events.
type WaitConfig struct {
	// Level is off, stats or trace. If it is empty, the worker gives up the right to load BPF programs into the kernel, and
	// only the method sampled can be used.
	Level string
	// Method is the best method (see waits.Method) that the worker may use; empty: auto.
	Method string
	// BudgetPercent is the limit of the cost of the timing, in percent of the time for which processors are busy; 0: no limit.
	BudgetPercent float64
}

// Check returns an error if a field has a wrong value.
func (c WaitConfig) Check() error {
	switch waits.Method(c.Method) {
	case "", waits.Auto, waits.Exact, waits.Blocked, waits.Sampled:
	default:
		return fmt.Errorf("--wait-event-method must be auto, exact, blocked or sampled, not %q", c.Method)
	}
	switch {
	case !slices.Contains([]string{"", string(waitevent.Off), string(waitevent.Stats), string(waitevent.Trace)}, c.Level):
		return fmt.Errorf("--wait-event-capture must be off, stats or trace, not %q", c.Level)
	case !(c.BudgetPercent >= 0 && c.BudgetPercent <= 100):
		return fmt.Errorf("--wait-event-budget must be from 0 to 100, not %v", c.BudgetPercent)
	}
	return nil
}

func (w *Worker) newWaits() *waitevent.Timer {
	c := w.cfg.Waits
	return waitevent.NewTimer(waitevent.Config{
		Level: waitevent.Level(c.Level), Method: waits.Method(c.Method), Budget: c.BudgetPercent / 100,
		Current: w.current, Log: w.log,
	})
}
