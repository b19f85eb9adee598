package pgcluster

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// asUserOf calls f so that it may read what the process's own user may read about the process: working directory and
// memory map. Root needs CAP_SYS_PTRACE for that, which root lacks in most containers. So f runs with the user's file
// system ids (setfsuid(2)), on its own thread. If this process is not root, asUserOf just calls f.
func asUserOf(status procfs.Status, f func() error) error {
	if os.Geteuid() != 0 {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := withFileIDs(status.UID[1], status.GID[1], f)
		if back := withFileIDs(0, os.Getegid(), func() error { return nil }); back == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with this goroutine
		}
		result <- err
	}()
	return <-result
}

// withFileIDs sets the file system ids of the calling thread and calls f. The system calls report no errors, but they
// return the previous id. So a second call with an impossible id returns the current one.
func withFileIDs(uid, gid int, f func() error) error {
	const ask = -1
	_ = unix.Setfsgid(gid) // these calls report no errors
	_ = unix.Setfsuid(uid)
	group, err1 := unix.SetfsgidRetGid(ask)
	user, err2 := unix.SetfsuidRetUid(ask)
	if err1 != nil || err2 != nil || group != gid || user != uid {
		return fmt.Errorf("reading as user %d and group %d: not permitted to take on their ids", uid, gid)
	}
	return f()
}
