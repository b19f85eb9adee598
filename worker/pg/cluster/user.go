package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// Privileges describes the user and capabilities of this process after BecomeServerUser.
type Privileges struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Changed is set if the process was root and is the server's user now.
	Changed bool `json:"changed"`
	// Trace is set if the process has CAP_SYS_PTRACE. The process needs it if kernel.yama.ptrace_scope is 1 or 2, or
	// if the server is not dumpable.
	Trace bool `json:"trace"`
	// Sample is set if the process has CAP_PERFMON. It is kept only if kernel.perf_event_paranoid is above 2, because
	// the engine "running" then needs it.
	Sample bool `json:"sample"`
}

// BecomeServerUser gives up every privilege that the worker does not need to serve c. A process started as root
// permanently becomes the server's operating system user, with only the postmaster's group. A process that already runs
// as that user keeps its user. Of all capabilities the process keeps only CAP_SYS_PTRACE, and CAP_PERFMON if
// kernel.perf_event_paranoid is above 2. Programs that it executes later gain none (empty bounding set, no_new_privs).
// All of this holds for every thread.
//
// The capabilities in the parameter named also are kept too, if the process has them.
//
// Call BecomeServerUser once and early, before files are created and before a connection string is parsed. The defaults
// for user name, password file and service file then are in the new user's home directory, except for environment
// variables that are set. After an error some privileges may already be gone, so the process should end.
//
// The error is ErrWrongUser, ErrNotStatic, or the error of a system call.
func BecomeServerUser(c Cluster, also ...int) (Privileges, error) {
	if c.UID <= 0 {
		return Privileges{}, fmt.Errorf("%s: %w: user id %d cannot be PostgreSQL's", c.DataDir, ErrWrongUser, c.UID)
	}
	euid := os.Geteuid()
	if euid != 0 && euid != c.UID {
		return Privileges{}, fmt.Errorf("%s: %w", c.DataDir, wrongUser(c.PostmasterPID, c.UID))
	}
	keep, err := permitted()
	if err != nil {
		return Privileges{}, err
	}
	allowUrgency()
	level, _ := os.ReadFile("/proc/sys/kernel/perf_event_paranoid") // useful accepts an empty level
	wanted := useful(string(level))
	for _, capability := range also {
		wanted |= 1 << capability
	}
	keep &= wanted
	p := Privileges{
		UID: c.UID, GID: c.GID, Changed: euid == 0,
		Trace: keep&(1<<unix.CAP_SYS_PTRACE) != 0, Sample: keep&(1<<unix.CAP_PERFMON) != 0,
	}
	if !p.Changed {
		p.GID = os.Getegid()
		return p, reduce(keep)
	}
	if err := changeUser(c.UID, c.GID, keep); err != nil {
		return Privileges{}, err
	}
	adoptHome(c.UID)
	return p, verifyThreads(c.UID, c.GID, keep)
}

// changeUser changes from root to the user, in the only order that works. Steps that need a capability come before
// the change of user drops it. KEEPCAPS preserves the capabilities in keep.
func changeUser(uid, gid int, keep uint64) error {
	if err := dropBounding(); err != nil {
		return err
	}
	if err := prctlAll(unix.PR_SET_KEEPCAPS, 1); err != nil {
		return fmt.Errorf("keeping capabilities: %w", err)
	}
	if err := syscall.Setgroups([]int{gid}); err != nil {
		return fmt.Errorf("setting the supplementary groups to %d: %w", gid, err)
	}
	if err := syscall.Setgid(gid); err != nil {
		return fmt.Errorf("becoming group %d: %w", gid, err)
	}
	if err := syscall.Setuid(uid); err != nil {
		return fmt.Errorf("becoming user %d: %w", uid, err)
	}
	if err := setCapabilities(keep); err != nil {
		return err
	}
	if err := NoNewPrivileges(); err != nil {
		return err
	}
	return setDumpable(keep != 0)
}

// reduce drops capabilities of a process that already is the server's user, for example from AmbientCapabilities in a
// systemd unit. Usually there is nothing to drop, and then a binary linked with cgo works too.
func reduce(keep uint64) error {
	have, err := permitted()
	if err != nil {
		return err
	}
	if have != keep {
		if err := setCapabilities(keep); err != nil {
			return err
		}
	}
	if err := NoNewPrivileges(); err != nil && !errors.Is(err, ErrNotStatic) {
		return err
	}
	return nil
}

// setDumpable makes this process dumpable again if guarded is set, because the process then keeps capabilities. The
// change of user has made it undumpable (fs.suid_dumpable is 0 on most systems), which makes root the owner of its
// files in /proc. In this state the server's user cannot see the executable and the open files of this process, and the kernel
// writes no core file for it.
//
// But any process of the same user could trace a dumpable process, and so could every backend in which a superuser
// runs code. The tracer must not gain the worker's CAP_SYS_PTRACE. The kernel prevents that: only a process whose
// capabilities include all of the target's may trace it (cap_ptrace_access_check in security/commoncap.c). So with
// the capability the process can safely be dumpable. Without it, an inherited descriptor or a password in the
// environment would be unprotected, and the process stays undumpable.
func setDumpable(guarded bool) error {
	if !guarded {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("making the process dumpable: %w", err)
	}
	return nil
}

// adoptHome sets the environment for libpq's defaults to the new user, as su and runuser do. If the user has no entry
// in the user database, it does nothing.
func adoptHome(uid int) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return
	}
	for name, value := range map[string]string{"HOME": u.HomeDir, "USER": u.Username, "LOGNAME": u.Username} {
		_ = os.Setenv(name, value) // fails only for malformed names
	}
	defaults := map[string]string{
		"PGUSER":        u.Username,
		"PGPASSFILE":    filepath.Join(u.HomeDir, ".pgpass"),
		"PGSERVICEFILE": filepath.Join(u.HomeDir, ".pg_service.conf"),
	}
	for name, value := range defaults {
		if _, set := os.LookupEnv(name); !set {
			_ = os.Setenv(name, value)
		}
	}
}

// verifyThreads returns an error if a thread has kept root's privileges.
func verifyThreads(uid, gid int, keep uint64) error {
	pid := os.Getpid()
	threads, err := process.Threads(pid)
	if err != nil {
		return fmt.Errorf("listing the own threads: %w", err)
	}
	for _, tid := range threads {
		status, err := process.ReadTaskStatus(pid, tid)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			return fmt.Errorf("thread %d: %w", tid, err)
		}
		for i := range status.UID {
			if status.UID[i] != uid || status.GID[i] != gid || status.CapPrm != keep || status.CapEff != keep {
				return fmt.Errorf("thread %d kept rights: user ids %v, group ids %v, capabilities %#x",
					tid, status.UID, status.GID, status.CapPrm)
			}
		}
	}
	return nil
}
