package verb

import (
	"context"
	"fmt"
	"testing"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/serve/spool"
)

// TestPlanFailure: each failure has its SQLSTATE and says what happened. Where nothing was stopped, none speaks of a stop.
func TestPlanFailure(t *testing.T) {
	unread := fmt.Errorf("%w: %w", capture.ErrProgramUnread, context.DeadlineExceeded)
	for _, c := range []struct {
		err  error
		want spool.Answer
	}{
		{capture.ErrNotPostgres, spool.Answer{
			Message: "the plan of process with PID 7 is not known",
			Detail:  "It runs no PostgreSQL server of version 14 to 19 whose structures are known.",
		}},
		{&plan.UnknownLayoutError{}, spool.Answer{
			Message: "the plan of process with PID 7 is not known",
			Detail:  "It runs no PostgreSQL server of version 14 to 19 whose structures are known.",
		}},
		{capture.ErrPlanChanges, spool.Answer{
			Message: "process with PID 7 runs short statements",
			Detail:  "Each time its plan was read, another statement ran.",
		}},
		{unread, spool.Answer{
			Message: "the program of process with PID 7 was not read in time",
			Hint:    "Retry: the worker continues to read it.",
		}},
	} {
		got := planFailure(7, fmt.Errorf("read: %w", c.err))
		if got.Level != "ERROR" || got.SQLState != "55000" || got.Message != c.want.Message ||
			got.Detail != c.want.Detail || got.Hint != c.want.Hint {
			t.Errorf("%v: %+v", c.err, got)
		}
	}
}
