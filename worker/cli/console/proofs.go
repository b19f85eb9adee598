package console

import (
	"os"

	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/serve/spool"
)

// PlanStore has this user's comparisons with EXPLAIN. Without a cache it has none.
func PlanStore() runningplan.Store {
	dir, err := debuginfod.DefaultCacheDir(os.Getenv)
	if err != nil {
		return runningplan.Store{}
	}
	return runningplan.Store{Dir: dir}
}

// ProvenPlans returns the function that looks up the proven fields of a build: in this user's comparisons with EXPLAIN, then
// in those of the worker that serves a data directory. It returns nil for a build without any.
func ProvenPlans(dataDir string) func(build string, major int) *plan.Proof {
	return func(build string, major int) *plan.Proof {
		if proof := PlanStore().Load(build, major); proof != nil {
			return proof
		}
		worker, err := spool.Find(dataDir)
		if err != nil || !worker.Alive() {
			return nil
		}
		return runningplan.WorkerStore(worker.PID, worker.Plans).Load(build, major)
	}
}
