package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/worker/pgcluster"
	"pg_stat_backtrace/worker/spool"
)

// postmasters returns the processes of the host that may be postmasters: their program is called postgres, and they are
// no child of such a process in the same directory. It reads links and small files of /proc only, so it does not wait
// for a file system. It leaves out processes that this user may not examine. denied is their number, without their
// children.
func postmasters(cfg Config) (found map[key]Process, denied int, err error) {
	proc := cfg.Proc
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, 0, fmt.Errorf("listing processes: %w", err)
	}
	found = map[key]Process{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		server, err := isServer(proc, pid)
		secret := errors.Is(err, fs.ErrPermission) && isCalledServer(proc, pid)
		if !server && !secret {
			continue
		}
		stat, err := procfs.ReadStat(pid)
		if err != nil || !isOwnedBy(pid, cfg.UIDs) {
			continue
		}
		if secret {
			if !isCalledServer(proc, stat.PPID) {
				denied++
			}
			continue
		}
		cwd, err := os.Readlink(filepath.Join(proc, entry.Name(), "cwd"))
		if err != nil || !filepath.IsAbs(cwd) || strings.HasSuffix(cwd, " (deleted)") || !isBelow(cwd, cfg.Below) ||
			isChild(proc, stat.PPID, cwd) {
			continue
		}
		found[key{pid, stat.StartTime}] = Process{PID: pid, Start: stat.StartTime, DataDir: cwd}
	}
	return found, denied, nil
}

// isChild reports whether a process with this parent and directory is a child of a postmaster. A postmaster that is
// process 1 of a container is also the parent of other postmasters there, which have another directory.
func isChild(proc string, parent int, cwd string) bool {
	if server, _ := isServer(proc, parent); !server {
		return false
	}
	its, err := os.Readlink(filepath.Join(proc, strconv.Itoa(parent), "cwd"))
	return err != nil || its == cwd
}

// isServer reports whether a process runs a program called postgres, or a file of that name that was deleted since.
func isServer(proc string, pid int) (bool, error) {
	exe, err := os.Readlink(filepath.Join(proc, strconv.Itoa(pid), "exe"))
	if err != nil {
		return false, err
	}
	return isServerName(filepath.Base(strings.TrimSuffix(exe, " (deleted)"))), nil
}

// isCalledServer reports whether a process has the name of a server. Everybody can read it, and each process can change
// its own.
func isCalledServer(proc string, pid int) bool {
	name, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
	return err == nil && isServerName(strings.TrimSuffix(string(name), "\n"))
}

func isServerName(name string) bool { return name == "postgres" || name == "postmaster" }

// isBelow reports whether a path is one of the directories or in one of them; without any, it is.
func isBelow(path string, directories []string) bool {
	return len(directories) == 0 || slices.ContainsFunc(directories, func(dir string) bool {
		dir = strings.TrimSuffix(dir, "/")
		return path == dir || strings.HasPrefix(path, dir+"/")
	})
}

// isOwnedBy reports whether a process has one of the effective user ids; without any, it has.
func isOwnedBy(pid int, uids []int) bool {
	if len(uids) == 0 {
		return true
	}
	status, err := procfs.ReadStatus(pid)
	return err == nil && slices.Contains(uids, status.UID[1])
}

// reach returns the path of a directory that a process names: the same path if it has this process's root directory.
func reach(proc string, pid int, path string) string {
	root := filepath.Join(proc, strconv.Itoa(pid), "root")
	if strings.HasPrefix(path, root+"/") {
		return path // from an earlier call
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

// errServed says that a cluster has a worker already.
var errServed = errors.New("another worker serves this cluster")

// prove checks that a process is the postmaster of its data directory and has no worker, and returns that directory as
// this process reaches it.
func prove(proc string, p Process) (dataDir string, err error) {
	dir := reach(proc, p.PID, p.DataDir)
	c, err := pgcluster.ByDataDir(dir)
	if err != nil {
		return dir, err
	}
	if c.PostmasterPID != p.PID || c.PostmasterStart != p.Start {
		return dir, fmt.Errorf("process %d is not the postmaster of %s: process %d is", p.PID, dir, c.PostmasterPID)
	}
	if info, err := spool.Find(c.DataDir); err == nil && info.Alive() {
		return dir, fmt.Errorf("%w: process %d", errServed, info.PID)
	}
	return dir, nil
}
