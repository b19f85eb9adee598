package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/spool"
)

// Names of the recorder's flags.
const (
	FlagRecord    = "record"
	FlagRecordDir = "record-dir"
	FlagRules     = "rules"
)

// RecorderDir returns the directory to which the worker of a server records; empty: there is none, or it is not known. The worker
// keeps the history's lock file open, and the links in /proc/PID/fd show the path of this file. While the disk fails, the worker closes
// the file: then the description of the recorder in the spool directory has the path.
func RecorderDir(dataDir string) string {
	worker, err := spool.Find(dataDir)
	if err != nil {
		return ""
	}
	control, err := cluster.ReadControl(dataDir)
	if err != nil {
		return ""
	}
	stat, err := process.ReadStat(worker.PID)
	if err != nil || stat.StartTime != worker.StartTime {
		return ""
	}
	links := fmt.Sprintf("/proc/%d/fd", worker.PID)
	entries, err := os.ReadDir(links)
	if err != nil {
		return ""
	}
	suffix := "/cluster=" + control.ID() + "/lock"
	for _, e := range entries {
		path, err := os.Readlink(filepath.Join(links, e.Name()))
		if err != nil || !filepath.IsAbs(path) {
			continue
		}
		if dir, ok := strings.CutSuffix(path, suffix); ok {
			return dir
		}
	}
	if r, err := spool.ReadRecorder(worker.Dir); err == nil && filepath.IsAbs(r.Dir) {
		return r.Dir
	}
	return ""
}
