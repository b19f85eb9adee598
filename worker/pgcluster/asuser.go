package pgcluster

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// asUserOf calls f in such a way that it may read what the process's own user may read of it: working directory, memory
// map. Root may do so by CAP_SYS_PTRACE only, which root lacks in most containers. In that case f runs with the user's
// file system ids (setfsuid(2)), on a thread of its own; a process that is not root just calls it.
func asUserOf(status procfs.Status, f func() error) error {
	if os.Geteuid() != 0 {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := withFileIDs(status.UID[1], status.GID[1], f)
		if back := withFileIDs(0, os.Getegid(), func() error { return nil }); back == nil {
			runtime.UnlockOSThread() // else the thread ends with this goroutine
		}
		result <- err
	}()
	return <-result
}

// withFileIDs sets the file system ids of the calling thread and calls f. The calls do not say whether they worked,
// but they return what was set before: asked again with an impossible id, what is set now.
func withFileIDs(uid, gid int, f func() error) error {
	const ask = -1
	_ = unix.Setfsgid(gid) // they report no errors
	_ = unix.Setfsuid(uid)
	group, err1 := unix.SetfsgidRetGid(ask)
	user, err2 := unix.SetfsuidRetUid(ask)
	if err1 != nil || err2 != nil || group != gid || user != uid {
		return fmt.Errorf("reading as user %d and group %d: not permitted to take on their ids", uid, gid)
	}
	return f()
}
