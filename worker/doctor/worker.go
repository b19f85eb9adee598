package doctor

import (
	"fmt"

	"pg_stat_backtrace/worker/cluster"
	"pg_stat_backtrace/worker/inroot"
	"pg_stat_backtrace/worker/spool"
)

// worker looks whether a worker serves the cluster, and where its spool is.
func worker(c cluster.Cluster, o Options) finding {
	start := "Start it: pg_stat_backtrace worker -D " + c.DataDir
	info, err := spool.Find(c.DataDir)
	switch {
	case err != nil:
		return finding{warn, "worker", err.Error(), start}
	case !info.Alive():
		text := fmt.Sprintf("process %d, which served this server, does not run any more", info.PID)
		return finding{warn, "worker", text, start}
	}
	text := fmt.Sprintf("process %d, version %s, spool %s", info.PID, info.Version, info.Dir)
	if _, err := inroot.Stat(c.Root + info.Dir); err != nil {
		return finding{bad, "worker", fmt.Sprintf("%s: %v", text, err), "It makes a new spool by itself; else restart it."}
	}
	if info.Protocol != spool.Protocol {
		return finding{
			bad, "worker", fmt.Sprintf("%s, protocol %d; this program has protocol %d", text, info.Protocol, spool.Protocol),
			"Restart the worker.",
		}
	}
	if info.Version != o.Version {
		return finding{warn, "worker", fmt.Sprintf("%s; this program is version %s", text, o.Version), "Restart the worker."}
	}
	return finding{good, "worker", text, ""}
}
