package pgcluster

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// Privileges says as whom this process runs after BecomeServerUser.
type Privileges struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Changed is set when the process was root and is the server's user now.
	Changed bool `json:"changed"`
	// Trace is set when the process holds CAP_SYS_PTRACE. It needs it only where the kernel asks for more than the same
	// user: kernel.yama.ptrace_scope of 1 or 2, or a server that is not dumpable.
	Trace bool `json:"trace"`
	// Sample is set when the process holds CAP_PERFMON, which is kept only where kernel.perf_event_paranoid is above 2:
	// the engine "running" needs it there.
	Sample bool `json:"sample"`
}

// BecomeServerUser gives up every right that serving c does not take. A process started as root becomes the server's
// operating system user for good, with the group of the postmaster and no further ones; one that is that user already
// stays it. Either way, of all capabilities only CAP_SYS_PTRACE is kept, and CAP_PERFMON where
// kernel.perf_event_paranoid is above 2, if they were there; nothing that is executed
// later gains any (empty bounding set, no_new_privs); and all of it holds for every thread.
//
// The capabilities in also are kept too, if they were there.
//
// Call it once, early, before files are made and before a connection string is parsed: the defaults for user name,
// password and service files follow the new user's home directory (environment variables that are set stay). When it
// fails, some of the rights may be gone already, so the process should end.
//
// The errors are ErrWrongUser and ErrNotStatic, or what a system call refused.
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
	level, _ := os.ReadFile("/proc/sys/kernel/perf_event_paranoid") // useful knows what to make of none
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

// changeUser is the way from root to the user, in the only order that works: what takes a capability comes before the
// change of user drops it, except for those that KEEPCAPS carries over.
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

// reduce drops capabilities that came with a process which is the server's user already (a systemd unit with
// AmbientCapabilities, say). In the usual case there is nothing to drop, and a binary linked with cgo will do.
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

// setDumpable decides who may look into this process. The change of user has made it undumpable (fs.suid_dumpable is 0
// nearly everywhere), which gives its files in /proc to root: nobody but root could then see its memory, and also not
// its executable, its open files or a core dump of it, which an administrator wants who works as the server's user.
//
// Dumpable again, any process of the same user could trace it, and that means every backend that a superuser makes run
// code. A worker with CAP_SYS_PTRACE must not be open to that, as the tracer would gain the capability. It is not: the
// kernel lets a process be traced only by those whose capabilities include all of its own (cap_ptrace_access_check in
// security/commoncap.c). So with the capability kept the process can safely be dumpable. Without it there is no such
// guard for what it still has from root, an inherited descriptor or a password in its environment, and it stays as the
// kernel left it.
func setDumpable(guarded bool) error {
	if !guarded {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("making the process dumpable: %w", err)
	}
	return nil
}

// adoptHome points the defaults of libpq connection strings to the new user, as su and runuser do. An error means that
// the user has no entry in the user database; then there are no defaults to adopt.
func adoptHome(uid int) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return
	}
	for name, value := range map[string]string{"HOME": u.HomeDir, "USER": u.Username, "LOGNAME": u.Username} {
		_ = os.Setenv(name, value) // fails for malformed names only
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

// verifyThreads makes sure that no thread has kept root's rights.
func verifyThreads(uid, gid int, keep uint64) error {
	pid := os.Getpid()
	threads, err := procfs.Threads(pid)
	if err != nil {
		return fmt.Errorf("listing the own threads: %w", err)
	}
	for _, tid := range threads {
		status, err := procfs.ReadTaskStatus(pid, tid)
		if errors.Is(err, procfs.ErrGone) {
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
