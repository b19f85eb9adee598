package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	pgcluster "pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/spool"
	"strconv"
	"strings"
)

// reach returns a path by which this process reaches a directory. The parameter path is the directory's path as the
// process pid sees it. The result is the same path if both processes have the same root directory.
func reach(proc string, pid int, path string) string {
	root := filepath.Join(proc, strconv.Itoa(pid), "root")
	if strings.HasPrefix(path, root+"/") {
		return path // the result of an earlier call
	}
	own, err1 := os.Stat("/")
	its, err2 := os.Stat(root + "/")
	cwd := filepath.Join(proc, strconv.Itoa(pid), "cwd")
	if err1 == nil && err2 == nil && os.SameFile(own, its) && sameFile(path, cwd) {
		return path
	}
	return filepath.Clean(root) + path
}

func sameFile(a, b string) bool {
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// errServed means that a cluster has a worker already.
var errServed = errors.New("another worker serves this cluster")

// prove verifies that p is the postmaster of its data directory and that no worker serves it. It returns a path by
// which this process reaches the directory, even if it also returns an error.
func prove(proc string, p Process) (dataDir string, err error) {
	dir := reach(proc, p.PID, p.DataDir)
	c, err := pgcluster.ByPostmaster(dir, p.PID)
	if err != nil {
		return dir, err
	}
	if c.PostmasterStart != p.Start {
		return dir, fmt.Errorf("%s: %w: process %d has ended", dir, pgcluster.ErrNotRunning, p.PID)
	}
	if info, err := spool.Find(c.DataDir); err == nil && info.Alive() {
		return dir, fmt.Errorf("%w: process %d", errServed, info.PID)
	}
	return dir, nil
}

// isNoPostmaster reports whether an error of prove means that the process is not a postmaster.
func isNoPostmaster(err error) bool {
	return errors.Is(err, pgcluster.ErrNotDataDir) || errors.Is(err, pgcluster.ErrNotRunning)
}
