package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/spool"
)

// history returns the finding on the recorder of a running worker: whether it records, and which sweeps were lost; none if the
// worker does not describe its recorder.
func history(c cluster.Cluster, info spool.Info, now time.Time) []finding {
	r, err := spool.ReadRecorder(c.Root + info.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist): // an older worker, or the finding "worker" says that the spool is missing
		return nil
	case err != nil:
		return []finding{{warn, "history", fmt.Sprintf("the state of the recorder is not known: %v", err), ""}}
	}
	return []finding{recorded(&r, now)}
}

func recorded(r *spool.Recorder, now time.Time) finding {
	if r.Dir == "" {
		return finding{good, "history", "none is recorded; to record one, give the worker --record-dir DIRECTORY", ""}
	}
	switch {
	case r.Failing && r.Lost == 0:
		return finding{warn, "history", "sweeps wait to be written to " + r.Dir + ": " + r.Reason, sentence(r.Remedy)}
	case r.Failing:
		text := fmt.Sprintf("%s lost since %s: %s", units.Count(r.Lost, "sweep"), clock(r.Since, now), r.Reason)
		return finding{warn, "history", text, sentence(r.Remedy)}
	case r.Lost > 0:
		text := fmt.Sprintf("recorded to %s; %s lost from %s to %s: %s", r.Dir, units.Count(r.Lost, "sweep"), clock(r.Since, now),
			clock(r.Until, now), r.Reason)
		return finding{good, "history", text, ""}
	}
	return finding{good, "history", "recorded to " + r.Dir + "; no sweep was lost since the worker started", ""}
}

// sentence makes a hint of a remedy. Without a remedy, the hint is to read the log.
func sentence(remedy string) string {
	if remedy == "" {
		return "Read the worker's log."
	}
	return strings.ToUpper(remedy[:1]) + remedy[1:] + "."
}

// clock returns the local time of a moment, with the date if this is not the day of now.
func clock(t, now time.Time) string {
	if t, now = t.Local(), now.Local(); t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04:05")
	}
	return t.Format(time.DateTime)
}
