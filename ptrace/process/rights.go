package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Rights are the values that the kernel compares before it lets one process trace another (__ptrace_may_access in
// kernel/ptrace.c, cap_ptrace_access_check in security/commoncap.c). A tracer with CAP_SYS_PTRACE passes these checks for
// every process. So a tracer that works for a user compares the rights itself: see Target.Rights.
//
// The supplementary groups are not part of Rights. The kernel does not compare them either: a user may trace a process
// that differs only in these groups.
type Rights struct {
	UID, GID  [4]int // real, effective, saved, file system
	Permitted uint64 // permitted capabilities
	// UserNamespace is the number of the user namespace. Equal ids and capabilities in different namespaces are
	// different rights.
	UserNamespace uint64
	// Undumpable means that the kernel denies even the user of the process to trace it. The process has asked for that,
	// has changed its user or group, or runs a program that its user cannot read (PR_SET_DUMPABLE in prctl(2)).
	Undumpable bool
	// Raised means that the file of the process's program has a setuid or setgid bit or capabilities, and that the
	// process has capabilities or is not dumpable. The process may have dropped the ids that it got from the file, and
	// may keep data that it has read with these ids.
	Raised bool
}

// ReadRights reads the rights of a process. The error is ErrExited if the process has ended or is ending, or a
// PermissionError if this process may not examine it. With a PermissionError, ids, capabilities and Undumpable are valid.
func ReadRights(pid int) (Rights, error) {
	status, err := ReadStatus(pid)
	if err != nil {
		return Rights{}, ReadError(pid, pid, err)
	}
	return rightsOf(pid, &status)
}

// rightsOf is ReadRights with a status that was just read.
func rightsOf(pid int, status *Status) (r Rights, err error) {
	if IsDead(status.State) {
		return Rights{}, Exited(pid)
	}
	r = Rights{UID: status.UID, GID: status.GID, Permitted: status.CapPrm, Undumpable: undumpable(status)}
	if r.Undumpable && IsEnding(pid, pid) {
		return Rights{}, Exited(pid) // it is dumpable: its files in /proc belong to root because it has lost its memory
	}
	if r.UserNamespace, err = Namespace(pid, "user"); err != nil {
		return r, ReadError(pid, pid, err)
	}
	if r.Undumpable || r.Permitted != 0 {
		r.Raised, err = raises(fmt.Sprintf("/proc/%d/exe", pid))
	}
	switch {
	case err == nil:
		return r, nil
	case IsEnding(pid, pid):
		return Rights{}, Exited(pid)
	case errors.Is(err, fs.ErrPermission):
		return r, Denied(pid, pid)
	}
	return Rights{}, Failed(pid, "read its rights", err)
}

// raises reports whether the execution of a file can give a process more rights than its user has.
func raises(file string) (bool, error) {
	info, err := os.Stat(file)
	if err != nil {
		return false, err
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return true, nil
	}
	_, err = unix.Getxattr(file, "security.capability", nil)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return false, nil
	}
	return false, err
}

// Plain returns a PermissionError if a postmaster with these rights has more rights than the user uid and the group gid give
// it. In this case, the caller must not compare the rights of its children with them.
func (r *Rights) Plain(pid, uid, gid int) error {
	for i := range r.UID {
		switch {
		case r.UID[i] != uid:
			return raised(pid, fmt.Sprintf("its %s user id is %d and not %d", idKinds[i], r.UID[i], uid))
		case r.GID[i] != gid:
			return raised(pid, fmt.Sprintf("its %s group id is %d and not %d", idKinds[i], r.GID[i], gid))
		}
	}
	if r.Raised {
		return raised(pid, "its program has a setuid or setgid bit, or file capabilities")
	}
	return nil
}

// Verify returns nil if a process has the rights r now. Otherwise it returns a PermissionError, or an error of ReadRights.
func (r *Rights) Verify(pid int) error {
	status, err := ReadStatus(pid)
	if err != nil {
		return ReadError(pid, pid, err)
	}
	return r.VerifyStatus(pid, &status)
}

// VerifyStatus is Verify with a status that was just read.
func (r *Rights) VerifyStatus(pid int, status *Status) error {
	now, denied := rightsOf(pid, status)
	return r.compare(pid, &now, denied)
}

// VerifyProof is Verify with the rights that the process had at the time of the proof p.
func (r *Rights) VerifyProof(p *Proof) error {
	now, denied := p.Rights()
	return r.compare(p.pid, &now, denied)
}

// compare does the work of Verify. now has the present rights of the process, and denied is the error of reading them.
func (r *Rights) compare(pid int, now *Rights, denied error) error {
	if denied != nil && !errors.Is(denied, ErrNotPermitted) || denied != nil && *now == (Rights{}) {
		return denied
	}
	if err := r.compareIDs(pid, now.UID, now.GID, now.Permitted); err != nil {
		return err
	}
	switch {
	case now.Undumpable && !r.Undumpable:
		return foreign(pid, "it is not dumpable, so the kernel denies it to its own user")
	case denied != nil:
		return denied
	case now.UserNamespace != r.UserNamespace:
		return foreign(pid, "it is in another user namespace")
	case now.Raised:
		return foreign(pid, "its program has a setuid or setgid bit, or file capabilities")
	}
	return nil
}

// VerifyThread is Verify for the rights in which the threads of a process can differ: ids and capabilities.
func (r *Rights) VerifyThread(pid, tid int) error {
	status, err := ReadTaskStatus(pid, tid)
	if err != nil {
		return ReadError(pid, tid, err)
	}
	return r.compareIDs(tid, status.UID, status.GID, status.CapPrm)
}

//nolint:gochecknoglobals // a table
var idKinds = [4]string{"real", "effective", "saved", "file system"}

func (r *Rights) compareIDs(pid int, uid, gid [4]int, permitted uint64) error {
	for i, kind := range idKinds {
		switch {
		case uid[i] != r.UID[i]:
			return foreign(pid, fmt.Sprintf("its %s user id is %d and not %d", kind, uid[i], r.UID[i]))
		case gid[i] != r.GID[i]:
			return foreign(pid, fmt.Sprintf("its %s group id is %d and not %d", kind, gid[i], r.GID[i]))
		}
	}
	if permitted != r.Permitted {
		return foreign(pid, fmt.Sprintf("its permitted capabilities are 0x%x and not 0x%x", permitted, r.Permitted))
	}
	return nil
}

func raised(pid int, how string) error {
	return &PermissionError{pid, ReasonRights, "the postmaster has rights that its user does not have: " + how}
}

func foreign(pid int, how string) error {
	return &PermissionError{pid, ReasonRights, "it has other rights than the server: " + how}
}
