package rootfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// User has the ids with which the kernel checks access to files. The zero value has the ids of this process. Other ids
// count only if this process is root: every other process opens files with its own rights.
type User struct {
	uid, gid int
	groups   []int
	set      bool
}

// unowned is the id of a user and of a group without files, the overflow id of the kernel.
const unowned = 65534

// errIDs means that this process is root, but may not take on other ids, as in a container without CAP_SETUID and
// CAP_SETGID.
var errIDs = errors.New("not permitted to take on their ids")

// IDs returns a user without supplementary groups. For user id 0 it returns the ids of this process.
func IDs(uid, gid int) User {
	if uid == 0 {
		return User{}
	}
	return User{uid: uid, gid: gid, set: true}
}

// OfUser returns a user of whom only the id is known, without any group.
func OfUser(uid int) User { return IDs(uid, unowned) }

// OfProcess returns the user of a process. For a process of root it returns the ids of this process.
func OfProcess(pid int) (User, error) {
	if os.Geteuid() != 0 {
		return User{}, nil
	}
	status, err := process.ReadStatus(pid)
	if err != nil {
		return User{}, err
	}
	return OfStatus(status), nil
}

// OfStatus is OfProcess for a status that was read before. If a program with set-user-ID or set-group-ID has changed
// its ids, the ids of its caller count: the caller chose its files.
func OfStatus(status process.Status) User {
	const realID, effectiveID = 0, 1
	uid, gid := status.UID[realID], status.GID[realID]
	if uid == 0 {
		uid = status.UID[effectiveID]
	}
	if gid == 0 {
		gid = status.GID[effectiveID]
	}
	u := IDs(uid, gid)
	u.groups = status.Groups
	return u
}

// OfFile returns the user for files that another file names: the process if the path leads through its folder in
// /proc, otherwise the owner of the open file. The group of a file proves no membership, so the owner has none.
func OfFile(path string, f *os.File) (User, error) {
	if folder, _, ok := cutFolder(path); ok {
		pid, _, _ := strings.Cut(strings.TrimPrefix(folder, "/proc/"), "/")
		number, err := strconv.Atoi(pid)
		if err != nil {
			return User{}, err
		}
		return OfProcess(number)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return User{}, fmt.Errorf("%s: %w", path, err)
	}
	return OfUser(int(st.Uid)), nil
}

// Do calls f with the user's ids (setfsuid(2)), on a locked thread. The kernel then also ignores root's
// capabilities for files, but not CAP_SYS_PTRACE. Do just calls f if this process has the ids already.
func (u User) Do(f func() error) error {
	if !u.isOther() {
		return f()
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // if the goroutine ends without an unlock, its thread ends too
		err := errors.New("the function did not return")
		defer func() { result <- err }()
		own := User{uid: os.Geteuid(), gid: os.Getegid()}
		var failed error
		if own.groups, failed = unix.Getgroups(); failed == nil {
			failed = u.takeOn()
		}
		if failed == nil {
			failed = f()
		}
		err = failed
		if own.takeOn() == nil {
			runtime.UnlockOSThread()
		}
	}()
	return <-result
}

// isOther reports whether this process would have to change its ids.
func (u User) isOther() bool { return u.set && os.Geteuid() == 0 }

// takeOn gives the calling thread the user's ids. The calls for the two file system ids report no errors, but return
// the previous id. So a second call with an impossible id returns the current one.
func (u User) takeOn() error {
	const ask = -1
	_ = unix.Setfsuid(0) // root's capabilities are needed, and setfsuid(2) takes the ones for files away
	if have, err := unix.Getgroups(); err != nil || !slices.Equal(have, u.groups) {
		if err := unix.Setgroups(u.groups); err != nil { // of this thread only, unlike syscall.Setgroups
			return fmt.Errorf("as user %d: %w: setgroups: %w", u.uid, errIDs, err)
		}
	}
	_ = unix.Setfsgid(u.gid)
	_ = unix.Setfsuid(u.uid)
	gid, err1 := unix.SetfsgidRetGid(ask)
	uid, err2 := unix.SetfsuidRetUid(ask)
	if err1 != nil || err2 != nil || gid != u.gid || uid != u.uid {
		return fmt.Errorf("as user %d and group %d: %w", u.uid, u.gid, errIDs)
	}
	return nil
}
