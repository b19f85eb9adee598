package capture

import (
	"context"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/plan"
)

// PlanStack lets the tests read a stack with the layouts of other versions.
//
//nolint:gochecknoglobals // for tests
var PlanStack = func(c *Capturer, ctx context.Context, target process.Target, nonStop bool) (*plan.Stack, string, error) {
	look, err := c.planLook(ctx, target, nonStop, nil)
	if err != nil {
		return nil, "", err
	}
	return look.stack, look.engine, nil
}
