package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/report/visible"
)

// planFlags are the flags of the command plan.
type planFlags struct {
	nonStop bool
	timeout time.Duration
	width   int
}

const planLong = `Print the plan of the statement that a backend runs now, as EXPLAIN prints it: the
nodes, their tables and indexes, and the estimates. "=>" marks the node that runs,
"|" the nodes above it. A statement inside another one, as in a PL/pgSQL function
or a trigger, has a separate level. The outermost level comes first.

The command needs no connection and no extension. It stops the process at least
twice for a moment to copy its stack, and reads its memory from outside. It prints
a plan only if two looks at it are equal. If the memory does not prove a plan, the
command prints the reason instead, and the exit status is 1. Names of functions in FROM are not
read. A relation without a known name is printed with its object id.

The command reads the plans of PostgreSQL 14 to 18. The running node is marked on
x86_64 only. The command shows the statements of all users.`

func newPlan() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan PID...",
		Short: "Print the plan of the statement that a backend runs now",
		Long:  planLong,
		Example: `  pg_stat_backtrace plan 4711
  pg_stat_backtrace plan --nonstop 4711`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			pids, err := f.check(args)
			if err != nil {
				return usage(err)
			}
			return f.run(cmd.Context(), pids, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.nonStop, "nonstop", false, "do not stop the process")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "give up if a process cannot be read within `TIME`")
	fs.IntVar(&f.width, "query-width", 80, "at most `N` characters of each query")
	return cmd
}

// check validates the flags and returns the processes.
func (f *planFlags) check(args []string) ([]int, error) {
	switch {
	case f.timeout <= 0:
		return nil, fmt.Errorf("--timeout must be more than 0, not %s", f.timeout)
	case f.width < 1:
		return nil, fmt.Errorf("--query-width must be at least 1, not %d", f.width)
	}
	return processIDs(args)
}

// run prints process by process. A failure of one is reported, and the others follow.
func (f *planFlags) run(ctx context.Context, pids []int, stdout, stderr io.Writer) error {
	capturer, err := capture.New(capture.Config{LinesWait: linesWait})
	if err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	failed := false
	for _, target := range identities(pids) {
		limited, cancel := context.WithTimeout(ctx, f.timeout)
		plans, err := capturer.Plans(limited, target, f.nonStop)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed = true
			tellf(stderr, "%s", explainPlan(target.PID, err))
			continue
		}
		if !f.print(out, target.PID, plans) {
			failed = true
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	if failed {
		return errReported
	}
	return nil
}

func explainPlan(pid int, err error) string {
	var unknown *plan.UnknownLayoutError
	switch {
	case errors.Is(err, capture.ErrNotPostgres):
		return fmt.Sprintf("process with PID %d runs no PostgreSQL server of version 14 to 19", pid)
	case errors.Is(err, capture.ErrPlanChanges):
		return fmt.Sprintf("process with PID %d runs short statements: %s", pid, capture.ErrPlanChanges)
	case errors.As(err, &unknown):
		return fmt.Sprintf("process with PID %d: %s", pid, unknown)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the plan of process with PID %d could not be read in time\n"+
			"  Give it more time with --timeout.", pid)
	}
	return explain(pid, err)
}

// print prints the levels of a process. It returns false if a plan is left out.
func (f *planFlags) print(out io.Writer, pid int, p *capture.Plans) (whole bool) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	whole = p.Whole
	line("process %d, PostgreSQL %d: %s", pid, p.Major, count(len(p.Levels)))
	if !p.Whole {
		line("The stack could not be followed to its end: outer statements may be missing.")
	}
	if len(p.Levels) == 0 {
		line("The process executes no plan now: it is idle, plans, starts or ends a statement, or runs a utility command.")
		return whole
	}
	line("Unproven layout: offsets of PostgreSQL %d, checked by links in memory, and not compared with this build.", p.Major)
	for i, l := range p.Levels {
		source := []rune(strings.Join(strings.Fields(l.Source), " "))
		text := "text unknown"
		if len(source) > 0 {
			text = string(source[:min(len(source), f.width)])
			if len(source) > f.width {
				text += "..."
			}
		}
		line("\nlevel %d: %s", i+1, visible.Line(text))
		for row := range strings.Lines(l.Text(true)) {
			line("%s", visible.Line(strings.TrimSuffix(row, "\n")))
		}
		if l.Top == nil {
			whole = false
			line("no plan: %s", visible.Line(l.Reason))
		} else if l.Reason != "" {
			line("%s", visible.Line(l.Reason))
		}
	}
	return whole
}

func count(levels int) string {
	switch levels {
	case 0:
		return "no statement"
	case 1:
		return "1 statement"
	}
	return fmt.Sprintf("%d statements", levels)
}
