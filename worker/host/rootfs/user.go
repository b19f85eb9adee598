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
// have an effect only if this process is root: every other process opens files with its own rights.
type User struct {
	uid, gid int
	groups   []int
	set      bool
}

// unowned is the id of a user and of a group without files, the overflow id of the kernel.
const unowned = 65534

// errIDs means that this process is root, but may not take on other ids. An example is a container without CAP_SETUID
// and CAP_SETGID.
var errIDs = errors.New("not permitted to take on their ids")

// IDs returns a user without supplementary groups. For user id 0 it returns the ids of this process.
func IDs(uid, gid int) User {
	if uid == 0 {
		return User{}
	}
	return User{uid: uid, gid: gid, set: true}
}

// OfUser returns a User for a user id whose groups are unknown: the group unowned, and no supplementary groups.
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

// OfStatus is OfProcess for a process whose status was already read. For a program with set-user-ID or set-group-ID it uses
// the real ids, because their user has started the program and chosen its files.
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

// OfFile returns the user for files that the open file f names: the user of a process if path leads through its folder
// in /proc, otherwise the owner of f. It is also the owner for a process of root, below whose root directory other users can have
// files. The owner need not be a member of the file's group, so the User has no group.
func OfFile(path string, f *os.File) (User, error) {
	if folder, _, ok := cutFolder(path); ok {
		pid, _, _ := strings.Cut(strings.TrimPrefix(folder, "/proc/"), "/")
		number, err := strconv.Atoi(pid)
		if err != nil {
			return User{}, err
		}
		if u, err := OfProcess(number); err != nil || u.set {
			return u, err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return User{}, fmt.Errorf("%s: %w", path, err)
	}
	return OfUser(int(st.Uid)), nil
}

// Do calls f with the user's ids (setfsuid(2)), on a locked thread. The kernel then also ignores root's
// capabilities for files, but not CAP_SYS_PTRACE. If this process has the ids already, Do only calls f.
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

// isOther reports whether Do must change the ids of a thread.
func (u User) isOther() bool { return u.set && os.Geteuid() == 0 }

// takeOn gives the calling thread the user's ids. setfsuid(2) and setfsgid(2) report no errors, but return the previous
// id. So a second call with an impossible id returns the current id, which is then compared.
func (u User) takeOn() error {
	const ask = -1
	_ = unix.Setfsuid(0) // restores root's capabilities for files, which another id has taken away
	if have, err := unix.Getgroups(); err != nil || !slices.Equal(have, u.groups) {
		if err := unix.Setgroups(u.groups); err != nil { // changes only this thread, unlike syscall.Setgroups
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
