package console

import (
	"os"

	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/naming/debuginfod"
)

// PlanStore has this user's comparisons with EXPLAIN. Without a cache it has none.
func PlanStore() runningplan.Store {
	dir, err := debuginfod.DefaultCacheDir(os.Getenv)
	if err != nil {
		return runningplan.Store{}
	}
	return runningplan.Store{Dir: dir}
}
