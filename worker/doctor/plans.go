package doctor

import (
	"fmt"
	"time"

	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// plans reports whether the worker has compared the plans of the server's program with EXPLAIN.
func plans(c cluster.Cluster, p *cluster.Program) []finding {
	info, err := spool.Find(c.DataDir)
	if err != nil || !info.Alive() || p == nil {
		return nil // other findings have the reason
	}
	build := p.Module.Image.BuildID()
	if build == "" {
		return []finding{{absent, "plans", "the server's program has no build-id, so its plans are compared with EXPLAIN again at each " +
			"start of the worker", ""}}
	}
	store := runningplan.WorkerStore(info.PID, info.Plans)
	if proof := store.Load(build, c.Version); proof != nil {
		text := fmt.Sprintf("compared with EXPLAIN for build-id %s: %d of %d fields are proven", build, len(proof.Fields),
			max(proof.Compared, len(proof.Fields)))
		return []finding{{good, "plans", text, ""}}
	}
	hint := "Compare now: pg_stat_backtrace plan --calibrate -D " + render.ShellWord(c.DataDir)
	if f := store.LoadFailure(build, c.Version); f != nil {
		text := fmt.Sprintf("not compared with EXPLAIN for build-id %s, so the history has no plans: %s (%s)", build, f.Reason,
			f.Time.Format(time.RFC3339))
		if f.Next.After(time.Now()) {
			hint = fmt.Sprintf("The worker tries again at %s. %s", f.Next.Format(time.RFC3339), hint)
		}
		return []finding{{warn, "plans", text, hint}}
	}
	return []finding{{
		absent, "plans", fmt.Sprintf("not yet compared with EXPLAIN for build-id %s, so the history has no plans. The worker does it at the "+
			"first statement of some seconds, when the server is quiet, or after an hour, unless it has --no-calibrate", build), hint,
	}}
}
