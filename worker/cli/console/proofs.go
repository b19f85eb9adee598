package console

import (
	"os"

	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/serve/spool"
)

// PlanStore returns the store with this user's comparisons of plans with EXPLAIN. If this user has no cache directory, the store is
// empty.
func PlanStore() runningplan.Store {
	dir, err := debuginfod.DefaultCacheDir(os.Getenv)
	if err != nil {
		return runningplan.Store{}
	}
	return runningplan.Store{Dir: dir}
}

// ProvenPlans returns a function that looks up the fields of plans that were compared with EXPLAIN, for a build of the
// server. The function searches in this user's comparisons, then in the comparisons of the worker that serves the data
// directory. It returns nil if the build was not compared.
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
