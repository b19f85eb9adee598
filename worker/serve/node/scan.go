package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// The scanner examines new processes at each look, and all processes from time to time. /proc/loadavg has the newest
// process id of the host. So if no process has started, a look reads only this small file.
const (
	// fullLooks is the number of intervals between two looks at all processes. Such a look finds processes that have
	// executed another program since they were new, such as the start script of a container.
	fullLooks = 10
	// youngLooks is the number of intervals for which a new process is examined again at each look: it may be about to
	// execute the server's program, or to change to the data directory.
	youngLooks = 3
	// costFactor is the ratio of the pause after a look to the processor time of the look. So looks at new processes take at
	// most a hundredth of a processor, and looks at all processes another hundredth.
	costFactor = 100
	// maxNew is the largest number of new process ids that are examined one by one. If there are more, all processes
	// are examined.
	maxNew = 4096
	// maxYoung is the largest number of new processes that are examined again.
	maxYoung = 4096
)

// Limits of the candidates: processes that may be postmasters. Each candidate needs some kilobytes of memory.
const (
	maxCandidates       = 8192
	maxCandidatesOfUser = 512 // of one account; 2*Config.Max if that is more; fewer if there are many accounts
	minCandidatesOfUser = 16
	// maxDirectory is the longest path of a data directory, in bytes. PostgreSQL's own limit is 1,024 (MAXPGPATH), for
	// the path that the server sees.
	maxDirectory = 2048
)

// scanner finds the processes that may be postmasters. It reads only links and small files of /proc, so it never waits
// for another file system. Only the goroutine of Run uses it.
type scanner struct {
	Config

	found  map[int]Process   // by process id
	ofUser map[int]int       // number of processes in found, by account
	young  map[int]time.Time // new processes: until when each is examined again, by process id
	denied map[int]bool      // servers that this user may not examine
	left   int               // number of candidates left out because their account, or all together, have too many

	newest             int // newest process id at the last look; 0: unknown
	nextFull, nextLook time.Time
}

func newScanner(cfg Config) *scanner {
	return &scanner{
		Config: cfg, found: map[int]Process{}, ofUser: map[int]int{}, young: map[int]time.Time{}, denied: map[int]bool{},
	}
}

// look examines new processes or, from time to time, all processes. It reports whether it has examined any. If it is called too
// early after a costly look, it does nothing.
func (s *scanner) look(now time.Time) (examined bool, err error) {
	if now.Before(s.nextLook) {
		return false, nil
	}
	newest, known := s.newestProcess()
	fresh := newest - s.newest
	full := !known || s.newest == 0 || !now.Before(s.nextFull) || fresh < 0 || fresh > maxNew
	if !full && fresh == 0 && len(s.young) == 0 {
		return false, nil
	}
	from := s.newest + 1
	first := s.newest == 0
	s.newest = newest
	cost := processorTime(func() {
		if full {
			err = s.lookAtAll()
		} else {
			s.lookAtYoung(now)
		}
		if !first && fresh > 0 && fresh <= maxNew {
			s.lookAtNew(from, newest, now)
		}
	})
	switch {
	case full && first:
		s.nextFull = now.Add(max(youngLooks*s.Interval, costFactor*cost))
	case full:
		s.nextFull = now.Add(max(fullLooks*s.Interval, costFactor*cost))
	default:
		s.nextLook = now.Add(costFactor * cost)
	}
	return true, err
}

// newestProcess returns the newest id of a process or thread in this PID namespace.
func (s *scanner) newestProcess() (pid int, known bool) {
	text, err := os.ReadFile(filepath.Join(s.Proc, "loadavg"))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) == 0 {
		return 0, false
	}
	pid, err = strconv.Atoi(fields[len(fields)-1])
	return pid, err == nil && pid > 0
}

// processorTime returns the processor time that f takes.
func processorTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Timespec
	err1 := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before)
	f()
	err2 := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
	if errors.Join(err1, err2) != nil {
		return 0
	}
	return time.Duration(after.Nano() - before.Nano())
}

// lookAtAll examines every process. It begins with the earlier candidates, so that these stay candidates if an account has too
// many processes.
func (s *scanner) lookAtAll() error {
	folder, err := os.Open(s.Proc)
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	names, err := folder.Readdirnames(-1)
	_ = folder.Close()
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	before := s.found
	s.found, s.ofUser, s.denied, s.left = map[int]Process{}, map[int]int{}, map[int]bool{}, 0
	for pid := range before {
		s.examine(pid)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if _, done := before[pid]; err == nil && !done {
			s.examine(pid)
		}
	}
	return nil
}

// lookAtNew examines the processes whose ids are in the range from..to of new ids.
func (s *scanner) lookAtNew(from, to int, now time.Time) {
	for pid := from; pid <= to; pid++ {
		s.forget(pid)
		if s.examine(pid) && len(s.young) < maxYoung {
			s.young[pid] = now.Add(youngLooks * s.Interval)
		}
	}
}

// lookAtYoung examines the processes in s.young again, and removes from s.young the processes that are no longer young (see
// youngLooks).
func (s *scanner) lookAtYoung(now time.Time) {
	for pid, until := range s.young {
		if now.After(until) {
			delete(s.young, pid)
		}
		s.forget(pid)
		s.examine(pid)
	}
}

// forget removes a process id from the candidates.
func (s *scanner) forget(pid int) {
	if p, there := s.found[pid]; there {
		s.ofUser[p.Account]--
		delete(s.found, pid)
	}
	delete(s.denied, pid)
}

// examine adds a process to the candidates if it may be a postmaster. It reports whether the process exists.
func (s *scanner) examine(pid int) (exists bool) {
	folder := filepath.Join(s.Proc, strconv.Itoa(pid))
	cwd, err := os.Readlink(filepath.Join(folder, "cwd"))
	if errors.Is(err, fs.ErrPermission) {
		s.examineSecret(pid)
		return true
	}
	if err != nil {
		return false
	}
	if len(cwd) < 2 || len(cwd) > maxDirectory || !filepath.IsAbs(cwd) || strings.HasSuffix(cwd, deleted) ||
		!isBelow(cwd, s.Below) {
		return true
	}
	exe, err := os.Readlink(filepath.Join(folder, "exe"))
	if err != nil {
		return true
	}
	status, err := process.ReadStatus(pid)
	if err != nil || status.TGID != pid || !s.serves(status.UID[1]) {
		return true
	}
	named := isServerName(programName(exe))
	if !named && !actsAsPostmaster(status) {
		return true
	}
	stat, err := process.ReadStat(pid)
	if err != nil || process.HasEnded(&stat) || s.isChild(stat.PPID, cwd, exe) {
		return true
	}
	s.add(Process{
		PID: pid, Start: stat.StartTime, DataDir: cwd, UID: status.UID[1], Account: accountOf(pid, status.UID[1]),
		Unnamed: !named,
	})
	return true
}

// add adds a candidate, unless its account has too many or all accounts together have too many.
func (s *scanner) add(p Process) {
	most := min(max(maxCandidatesOfUser, 2*s.Max), max(minCandidatesOfUser, maxCandidates/(len(s.ofUser)+1)))
	if s.ofUser[p.Account] >= most || len(s.found) >= max(maxCandidates, 2*s.Max) {
		s.left++
		return
	}
	s.found[p.PID] = p
	s.ofUser[p.Account]++
}

// examineSecret adds a process that this user may not examine to denied, if it has the name of a server. It leaves out children of
// a postmaster.
func (s *scanner) examineSecret(pid int) {
	if !isCalledServer(s.Proc, pid) || len(s.denied) >= maxCandidates {
		return
	}
	status, err := process.ReadStatus(pid)
	if err == nil && s.serves(status.UID[1]) && !isCalledServer(s.Proc, status.PPID) {
		s.denied[pid] = true
	}
}

// serves reports whether Config.UIDs allows servers of a user.
func (s *scanner) serves(uid int) bool { return len(s.UIDs) == 0 || slices.Contains(s.UIDs, uid) }

// isChild reports whether a process with this parent, directory and program is a child of a postmaster: whether its parent has
// the same directory and program. A postmaster that is process 1 of a container is also the parent of other postmasters in
// the container, but these have another directory. A shell that has started a postmaster in its own directory runs another
// program. If the dynamic loader has started both the shell and the postmaster, their programs are equal, but the shell does
// not act as a postmaster.
func (s *scanner) isChild(parent int, cwd, exe string) bool {
	folder := filepath.Join(s.Proc, strconv.Itoa(parent))
	its, err := os.Readlink(filepath.Join(folder, "exe"))
	if err != nil {
		return false
	}
	switch name := programName(its); {
	case isServerName(name) && isServerName(programName(exe)):
	case name != programName(exe):
		return false
	default:
		status, err := process.ReadStatus(parent)
		if err == nil && !actsAsPostmaster(status) {
			return false
		}
	}
	its, err = os.Readlink(filepath.Join(folder, "cwd"))
	return err != nil || its == cwd
}

const deleted = " (deleted)"

// programName returns the name of the program to which the link exe leads. It also works if the file of the program was deleted.
func programName(exe string) string { return filepath.Base(strings.TrimSuffix(exe, deleted)) }

// isCalledServer reports whether the name of a process (comm) is a usual name of the server's program. All users can read the name
// of a process, and each process can change its own name.
func isCalledServer(proc string, pid int) bool {
	name, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
	return err == nil && isServerName(strings.TrimSuffix(string(name), "\n"))
}

// isServerName reports whether a name is usual for the server's program: postgres, postmaster, or a name such as
// ".postgres-wrapped", which is not the name of another program such as postgres_exporter.
func isServerName(name string) bool {
	return name == "postgres" || name == "postmaster" || strings.Contains(name, "postgres-wrapp")
}

// signals returns a set of signals in the form of SigCgt in /proc/PID/status.
func signals(numbers ...unix.Signal) (set uint64) {
	for _, n := range numbers {
		set |= 1 << (n - 1)
	}
	return set
}

// handled are signals for which postmasters of all versions have a handler.
var handled = signals(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGCHLD)

// actsAsPostmaster reports whether a process may be a postmaster whose program has any name: a fork of PostgreSQL, a wrapped
// program, or a program that the dynamic loader runs as its argument. It compares signals and excludes most other processes, so
// that the supervisor need not read files in their directories. Only the function prove decides whether the process is a
// postmaster: it reads these files. PostgreSQL does not run as root.
func actsAsPostmaster(status process.Status) bool {
	return status.UID[1] != 0 && status.SigCgt&handled == handled && status.SigIgn&signals(unix.SIGPIPE) != 0
}

// isBelow reports whether a path is one of the directories or is in one of them. Without directories, it returns true.
func isBelow(path string, directories []string) bool {
	return len(directories) == 0 || slices.ContainsFunc(directories, func(dir string) bool {
		dir = strings.TrimSuffix(dir, "/")
		return path == dir || strings.HasPrefix(path, dir+"/")
	})
}
