package recorder

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"strings"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
)

// planAge is the time that a statement must have run before its plan is read. Reading a plan takes some milliseconds of processor
// time. Statements that have run for a shorter time are too many, and often end while their plans are read.
const planAge = 10 * time.Second

// executorRun is a function that is on the stack of each process that executes a plan.
const executorRun = "standard_ExecutorRun"

// ErrUnproven means that the fields of plans were not compared with EXPLAIN for the server's build. Its plans are not recorded.
var ErrUnproven = errors.New("the layout of plans is unproven")

// TakePlan describes in words what the innermost plan of a process does, with rounded figures; empty: not known. The process is
// not stopped. The function proof returns the fields of plans that were compared with EXPLAIN for a build. If it returns nil,
// TakePlan returns ErrUnproven.
func TakePlan(
	ctx context.Context, c *capture.Capturer, server cluster.Cluster, proof func(build string, major int) *plan.Proof, pid int,
) (string, error) {
	build, err := c.ServerBuild(server.PostmasterPID)
	if err != nil {
		return "", err
	}
	if proof(build, server.Version) == nil {
		return "", ErrUnproven
	}
	target, err := server.Contains(pid)
	if err != nil {
		return "", err
	}
	defer target.Held.Release()
	plans, err := c.Plans(ctx, target, true)
	if err != nil {
		return "", err
	}
	proven := proof(plans.Build, plans.Major)
	if proven == nil {
		return "", ErrUnproven
	}
	proven.Apply(plans.Levels)
	return short(plan.RoundedPhrase(plans.Levels)), nil
}

// planTaker reads the plans of statements that have run for planAge. It does so in the goroutine that takes the stacks. If there
// is no time for all plans of a sweep, the plans that were read longest ago come first.
type planTaker struct {
	take  func(ctx context.Context, pid int) (string, error)
	known map[identity]*takenPlan
}

// takenPlan describes what the plan of a statement did when it was read, and has the number of context switches of its process
// shortly before.
type takenPlan struct {
	id        identity
	switches  uint64
	statement int64  // start of the statement, microseconds since 1970
	stack     *Stack // nil: the current stack is not known
	text      string
	at        time.Time // time of the sweep for which the plan was read
}

// wanted returns the statements whose plans are to be read: those of active sessions that have run for planAge, and whose process
// has run since their plan was read last. It omits sessions whose query text is not kept, since a plan contains names from the
// query. The function stack returns the stack of a process, nil if the process has run since the stack was taken.
func (t *planTaker) wanted(
	now time.Time, rows []store.Row, procs map[int32]rules.Proc, stack func(identity, rules.Proc) *Stack,
) []takenPlan {
	if t == nil {
		return nil
	}
	var list []takenPlan
	present := make(map[identity]bool, len(rows))
	for i := range rows {
		r := &rows[i]
		id := identity{r.PID, r.Start}
		present[id] = true
		p, ok := procs[r.PID]
		old := r.QueryStart > 0 && now.UnixMicro()-r.QueryStart >= planAge.Microseconds()
		if !ok || r.State != "active" || r.Query == "" || r.Ended || !old || t.same(id, r, p) {
			continue
		}
		list = append(list, takenPlan{id: id, switches: p.Switches, statement: r.QueryStart, stack: stack(id, p), at: now})
	}
	for id := range t.known {
		if !present[id] {
			delete(t.known, id)
		}
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return cmp.Compare(t.when(a.id), t.when(b.id)) < 0
	})
	return list
}

// same reports whether a process sleeps and has not run since the plan of its present statement was read.
func (t *planTaker) same(id identity, r *store.Row, p rules.Proc) bool {
	k := t.known[id]
	return k != nil && k.switches == p.Switches && k.statement == r.QueryStart && (p.State == 'S' || p.State == 'D')
}

func (t *planTaker) when(id identity) int64 {
	if k := t.known[id]; k != nil {
		return k.at.UnixNano()
	}
	return 0
}

// read reads the plans of processes whose stack shows that they execute a plan. It stops at the end of ctx, after
// limits.RecordedPlans of processor time, or after ErrUnproven. It returns the processes whose stack it has checked, with the
// texts of their plans.
func (t *planTaker) read(ctx context.Context, list []takenPlan, stacks []takenStack) (tried []takenPlan) {
	used := processTime()
	for _, p := range list {
		if i := slices.IndexFunc(stacks, func(s takenStack) bool { return s.id == p.id }); i >= 0 {
			p.stack = stacks[i].stack
		}
		if p.stack == nil {
			continue
		}
		if executes(p.stack) {
			if ctx.Err() != nil || processTime()-used > limits.RecordedPlans {
				break
			}
			text, err := t.take(ctx, int(p.id.pid))
			if errors.Is(err, ErrUnproven) {
				break
			}
			p.text = text
		}
		p.stack = nil
		tried = append(tried, p)
	}
	return tried
}

func executes(s *Stack) bool {
	return slices.ContainsFunc(s.Frames, func(name string) bool { return strings.HasPrefix(name, executorRun) })
}

// add keeps the plans that were read.
func (t *planTaker) add(list []takenPlan) {
	for i := range list {
		t.known[list[i].id] = &list[i]
	}
}

// fill sets the plan of a row, if the plan was read in this sweep, or if the process has not run since its plan was read.
func (t *planTaker) fill(now time.Time, r *store.Row, p rules.Proc) {
	if t == nil {
		return
	}
	id := identity{r.PID, r.Start}
	if k := t.known[id]; k != nil && k.statement == r.QueryStart && (k.at.Equal(now) || t.same(id, r, p)) {
		r.Plan = k.text
	}
}
