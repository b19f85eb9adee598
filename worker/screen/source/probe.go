package source

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of reading one process.
const (
	probeTimeout = 5 * time.Second
	maxContexts  = 50_000
	maxPages     = 16 << 10 // of memory that are read for memory contexts
)

// Plan implements Prober.Plan. The process is not stopped. So Plan reads its stack twice, and returns an error unless both
// times give the same plans.
func (l *Live) Plan(ctx context.Context, pid int) (*Plan, error) {
	c, err := l.current()
	if err != nil {
		return nil, err
	}
	if l.o.Capturer == nil {
		return nil, errors.New("this source takes no stacks")
	}
	target, err := c.Contains(pid)
	if err != nil {
		return nil, err
	}
	defer target.Held.Release()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	at, progress := time.Now(), l.progress(ctx, pid)
	plans, err := l.o.Capturer.Plans(ctx, target, true)
	if err != nil && progress != nil { // a utility command mostly has no plan
		return &Plan{Time: at, Levels: []PlanLevel{{Reason: err.Error()}}, Progress: progress}, nil
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{Time: at, Engine: plans.Engine, Levels: []PlanLevel{}, Whole: plans.Whole, Unproven: true, Progress: progress}
	if l.o.Proof != nil {
		if proof := l.o.Proof(plans.Build, plans.Major); proof != nil {
			proof.Apply(plans.Levels)
			p.Unproven, p.Phrase = false, plan.Phrase(plans.Levels)
		}
	}
	for _, level := range plans.Levels {
		x := PlanLevel{Statement: bounded(level.Source), Reason: level.Reason}
		if level.Top != nil {
			x.Text = level.Text(true)
		}
		p.Levels = append(p.Levels, x)
	}
	return p, nil
}

// Memory implements Prober.Memory.
func (l *Live) Memory(ctx context.Context, pid int) (*Memory, error) {
	c, err := l.current()
	if err != nil {
		return nil, err
	}
	if l.o.Capturer == nil {
		return nil, errors.New("this source reads no memory contexts")
	}
	target, err := c.Contains(pid)
	if err != nil {
		return nil, err
	}
	defer target.Held.Release()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	m := &Memory{Time: time.Now(), Contexts: []MemorySum{}}
	tree, err := l.o.Capturer.MemoryContexts(ctx, target, memctx.Options{MaxContexts: maxContexts, MaxPages: maxPages})
	if err != nil {
		return nil, err
	}
	switch {
	case tree.LeftOut:
		m.Inexact = "some memory contexts are left out, because there are too many"
	case tree.Missing > 0:
		m.Inexact = "some memory contexts are missing, because they changed while they were read: the totals are too low"
	case !tree.Consistent:
		m.Inexact = "the memory contexts changed while they were read (" + units.Count(tree.Attempts, "time") + ")"
	}
	byName := map[string]*MemorySum{}
	for i := range tree.Contexts {
		x := &tree.Contexts[i]
		sum := byName[x.Name]
		if sum == nil {
			sum = &MemorySum{Name: x.Name}
			byName[x.Name] = sum
		}
		total, free := max(0, x.Total), max(0, x.Free)
		sum.Contexts++
		sum.TotalBytes, sum.FreeBytes = sum.TotalBytes+total, sum.FreeBytes+free
		m.TotalBytes, m.FreeBytes = m.TotalBytes+total, m.FreeBytes+free
	}
	for _, sum := range byName {
		m.Contexts = append(m.Contexts, *sum)
	}
	slices.SortFunc(m.Contexts, func(a, b MemorySum) int {
		return cmp.Or(cmp.Compare(b.TotalBytes, a.TotalBytes), cmp.Compare(a.Name, b.Name))
	})
	if r, err := process.ReadRollup(target.PID); err == nil {
		resident, swapped := int64(r.Resident), int64(r.Swap)
		m.ResidentBytes, m.SwappedBytes = &resident, &swapped
	}
	return m, nil
}
