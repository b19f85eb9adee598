package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host/rootfs"
)

// ticksPerSecond is the unit of starttime in proc(5), USER_HZ. It is 100 on all supported architectures.
const ticksPerSecond = 100

// clockSlack is the largest accepted difference between the start times in postmaster.pid and in the kernel. The file
// is written after the configuration was read, and clocks are slewed.
const clockSlack = 30 * time.Second

// ByDataDir finds the server that runs on the data directory dir. It verifies the process named in postmaster.pid:
// its working directory must be dir, and it must run as the owner of dir. It must also map the shared memory segment
// that the file names. While the file names no segment yet, the start time of the process must be the one in the file.
// So ByDataDir recognizes a file left over by a crash, even if its pid belongs to another process now. The pid may
// belong to a PID namespace below this process's. dir may lead through /proc/PID/root. For a server in single-user or
// binary-upgrade mode the error is ErrNotRunning.
//
// The errors are ErrNotDataDir, ErrNotRunning, ErrWrongUser, ErrNoAccess and ErrNamespace.
func ByDataDir(dir string) (Cluster, error) { return byDataDir(dir, verifyAny) }

// ByPostmaster is like ByDataDir, but only the process pid may be the postmaster of the directory. It examines no other
// process and connects to no socket: a hostile process can only cause reads of a few small files. If another process is
// the postmaster, the error is ErrNotRunning.
func ByPostmaster(dir string, pid int) (Cluster, error) {
	return byDataDir(dir, func(path string, file pidFile) (Cluster, error) { return verify(path, file, pid) })
}

// ByProcess finds the server to which a process belongs: the process is the postmaster or a child of it. A process of a
// server works in the data directory, but a function in a session may have changed to another directory. So ByProcess
// tries the parent's directory first. The caller verifies that the process is a member: see Cluster.Members. The errors
// are those of ByDataDir; ErrNotDataDir means that the process and its parent work in other directories.
func ByProcess(pid int) (Cluster, error) {
	stat, err := process.ReadStat(pid)
	if errors.Is(err, process.ErrGone) {
		return Cluster{}, process.Exited(pid)
	}
	if err != nil {
		return Cluster{}, err
	}
	if stat.PPID > 0 {
		if c, err := ByPostmaster(procPath(stat.PPID, "cwd"), stat.PPID); err == nil {
			return c, nil
		}
	}
	return ByDataDir(procPath(pid, "cwd"))
}

// byDataDir finds the server of a directory. The callback find verifies the process that postmaster.pid names.
func byDataDir(dir string, find func(path string, file pidFile) (Cluster, error)) (Cluster, error) {
	path, err := resolve(dir)
	if errors.Is(err, fs.ErrPermission) {
		return Cluster{}, fmt.Errorf("%w, nor root: %w", ErrWrongUser, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Cluster{}, &missingDirError{dir}
	}
	if process.LacksResources(err) {
		return Cluster{}, fmt.Errorf("%s: %w", dir, err)
	}
	if err != nil {
		var failed *fs.PathError
		if errors.As(err, &failed) { // without the name of the system call
			err = failed.Err
		}
		return Cluster{}, fmt.Errorf("%s: %w: %w", dir, ErrNotDataDir, err)
	}
	version, err := readVersion(path)
	conf := filepath.Join(path, "postgresql.conf")
	if errors.Is(err, fs.ErrNotExist) && sameFile(conf, conf) {
		return Cluster{}, fmt.Errorf("%s: %w: it has the server's configuration; "+
			"name the directory that data_directory in its postgresql.conf is set to", dir, ErrNotDataDir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Cluster{}, fmt.Errorf("%s: %w: it has no file PG_VERSION", dir, ErrNotDataDir)
	}
	if err != nil {
		return Cluster{}, fmt.Errorf("%s: %w", dir, err)
	}
	file, err := readPIDFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Cluster{}, fmt.Errorf("%s: %w: there is no postmaster.pid", dir, ErrNotRunning)
	}
	if err != nil {
		return Cluster{}, fmt.Errorf("%s: %w", dir, err)
	}
	if file.pid < 0 {
		if _, err := process.ReadStat(-file.pid); errors.Is(err, process.ErrGone) {
			return Cluster{}, fmt.Errorf("%s: %w: process %d, which was in single-user mode, has ended", dir, ErrNotRunning, -file.pid)
		}
		return Cluster{}, fmt.Errorf("%s: %w: %w", dir, ErrNotRunning, &SingleUserError{-file.pid})
	}
	c, err := find(path, file)
	if err != nil {
		return Cluster{}, fmt.Errorf("%s: %w", dir, err)
	}
	upgrading, err := inBinaryUpgrade(c.PostmasterPID)
	switch {
	case process.LacksResources(err), errors.Is(err, process.ErrUnreachable):
		return Cluster{}, fmt.Errorf("%s: %w", dir, err)
	case err != nil:
		return Cluster{}, fmt.Errorf("%s: %w: %w", dir, ErrNotRunning, err)
	case upgrading:
		return Cluster{}, fmt.Errorf("%s: %w: postmaster %d runs in binary-upgrade mode, for pg_upgrade alone",
			dir, ErrNotRunning, c.PostmasterPID)
	}
	c.Version = version
	return c, nil
}

// resolve makes a path absolute and resolves symbolic links, except links of /proc whose text is not their target. It
// leaves a path below the root directory of another process unchanged, because package rootfs resolves it. But if the
// path leads to the same file for both processes, it returns the path of this process.
func resolve(dir string) (string, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if root, inside, ok := rootfs.Split(path); ok {
		if !rootfs.SamePath(root, "/"+inside) {
			_, err := rootfs.Stat(path)
			return path, err
		}
		path = "/" + inside
	}
	resolved, err := filepath.EvalSymlinks(path)
	if _, there := os.Stat(path); there == nil && !sameFile(path, resolved) { // a link's text leads elsewhere or nowhere
		err, resolved = nil, path
	}
	return resolved, err
}

// verifyAny finds the process that postmaster.pid names: it has the id in this PID namespace, or in one below.
func verifyAny(dir string, file pidFile) (Cluster, error) {
	c, err := verify(dir, file, file.pid)
	if err == nil || errors.Is(err, ErrNotDataDir) {
		return c, err
	}
	for _, pid := range namesakes(file.pid) {
		c, nested := verify(dir, file, pid)
		if nested == nil || (errors.Is(nested, ErrWrongUser) || errors.Is(nested, ErrNoAccess)) && sameOwner(dir, pid) {
			return c, nested
		}
	}
	if away := hidden(dir, file); away != nil {
		return Cluster{}, away
	}
	return Cluster{}, err
}

// verify returns the server if the process pid is its postmaster: postmaster.pid (file) in dir names this process.
func verify(dir string, file pidFile, pid int) (Cluster, error) {
	stale := func(reason string, err error) error {
		if process.LacksResources(err) {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		if err != nil {
			reason = fmt.Sprintf("%s: %v", reason, err)
		}
		return fmt.Errorf("%w: postmaster.pid names process %d, %s", ErrNotRunning, file.pid, reason)
	}
	stat, err := process.ReadStat(pid)
	if err != nil || process.HasEnded(&stat) {
		return Cluster{}, stale("which does not run", err)
	}
	status, err := process.ReadStatus(pid)
	switch {
	case err != nil:
		return Cluster{}, stale("which has gone", err)
	case innermost(status) != file.pid:
		return Cluster{}, stale("which is another one in its own PID namespace", nil)
	}
	info, err := rootfs.Stat(dir)
	if err != nil {
		return Cluster{}, fmt.Errorf("%w: %w", ErrNotDataDir, err)
	}
	if uid, ok := owner(info); !ok || uid != status.UID[1] {
		return Cluster{}, stale("which is not run by the directory's owner", nil)
	}
	root, socket := "", socketDir(dir, file.socketDir)
	err = rootfs.OfStatus(status).Do(func() error {
		root = rootOf(pid)
		if filepath.IsAbs(file.socketDir) {
			socket = (Cluster{PostmasterPID: pid, Root: root}).Prefix(socket) + socket
		}
		if err := provePostmaster(file, stat, info); err != nil {
			return err
		}
		rights, err := process.ReadRights(pid)
		if err == nil {
			err = rights.Plain(pid, status.UID[1], status.GID[1])
		}
		return err
	})
	var denied *process.PermissionError
	switch {
	case errors.As(err, &denied) && denied.Reason == process.ReasonRights:
		return Cluster{}, fmt.Errorf("%w: %w", ErrNoAccess, err)
	case errors.As(err, &denied):
		return Cluster{}, noAccess(pid, status)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, process.ErrDenied):
		return Cluster{}, noAccess(pid, status)
	case process.LacksResources(err):
		return Cluster{}, stale("", err)
	case err != nil:
		return Cluster{}, stale(err.Error(), nil)
	}
	again, err := process.ReadStat(pid)
	if err != nil || again.StartTime != stat.StartTime {
		return Cluster{}, stale("which has gone", err)
	}
	return Cluster{
		DataDir: dir, PostmasterPID: pid, PostmasterStart: stat.StartTime, UID: status.UID[1], GID: status.GID[1],
		Port: file.port, SocketDir: socket, Address: file.address, Started: file.started, Opening: file.opening,
		ServerPID: file.pid, Root: root, ids: translate(status.NSPID),
	}, nil
}

// provePostmaster returns an error unless the process is the server's postmaster, and not a later process with the same
// id. The working directory of a postmaster is its data directory, but an administrator's shell may be there too. Every
// server also maps a small System V segment that the file names, which is a proof independent of the clock. Before a
// server has its segment, its start time must be the one in the file.
func provePostmaster(file pidFile, stat process.Stat, dir fs.FileInfo) error {
	cwd, err := os.Stat(procPath(stat.PID, "cwd"))
	if err != nil {
		return fmt.Errorf("whose working directory cannot be read: %w", err)
	}
	if !os.SameFile(cwd, dir) {
		return errors.New("which works in another directory")
	}
	if file.shmID == 0 {
		started, err := startTime(stat.StartTime)
		if err != nil {
			return err
		}
		if apart := started.Sub(file.started); apart.Abs() > clockSlack {
			return fmt.Errorf("which was started at %s, not at %s",
				started.Format(time.RFC3339), file.started.Format(time.RFC3339))
		}
		return nil
	}
	_, found, err := process.FindMapping(stat.PID, func(m *process.Mapping) bool {
		return m.Inode == file.shmID && strings.HasPrefix(m.Path, "/SYSV")
	})
	if err != nil {
		return fmt.Errorf("whose memory map cannot be read: %w", err)
	}
	if found {
		return nil
	}
	return fmt.Errorf("which does not use the server's shared memory segment %d", file.shmID)
}

// startTime converts a start time of proc(5), in clock ticks since boot, to a time of the wall clock.
func startTime(ticks uint64) (time.Time, error) {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Time{}, fmt.Errorf("reading CLOCK_BOOTTIME: %w", err)
	}
	since := time.Duration(ticks) * (time.Second / ticksPerSecond)
	return time.Now().Add(since - time.Duration(boot.Nano())), nil
}

// sameOwner reports whether a process runs as the owner of the directory.
func sameOwner(dir string, pid int) bool {
	info, err1 := rootfs.Stat(dir)
	status, err2 := process.ReadStatus(pid)
	if err1 != nil || err2 != nil {
		return false
	}
	uid, ok := owner(info)
	return ok && uid == status.UID[1]
}

func socketDir(dataDir, dir string) string {
	if dir == "" || dir[0] == '@' || filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(dataDir, dir)
}

func wrongUser(pid, uid int) error {
	return fmt.Errorf("%w: the postmaster, process %d, runs as user id %d, and this process as %d",
		ErrWrongUser, pid, uid, os.Geteuid())
}

// noAccess returns the error with the reason why the kernel denies access to a postmaster. Usually the postmaster runs
// as another user.
func noAccess(pid int, postmaster process.Status) error {
	self, err := process.ReadStatus(os.Getpid())
	more := postmaster.CapPrm &^ self.CapPrm
	switch {
	case postmaster.UID[1] != os.Geteuid() || err != nil:
		return wrongUser(pid, postmaster.UID[1])
	case more != 0:
		return fmt.Errorf("%w, process %d: it has capabilities that this process lacks (0x%x)", ErrNoAccess, pid, more)
	case postmaster.GID != self.GID:
		return fmt.Errorf("%w, process %d: it runs as group id %d, and this process as %d",
			ErrNoAccess, pid, postmaster.GID[1], self.GID[1])
	}
	return fmt.Errorf("%w, process %d: it has made itself untraceable, or is in another user namespace", ErrNoAccess, pid)
}

func readVersion(dir string) (int, error) {
	data, err := rootfs.ReadIn(dir, "PG_VERSION", 64)
	if errors.Is(err, fs.ErrPermission) {
		return 0, fmt.Errorf("%w, nor root: %w", ErrWrongUser, err)
	}
	if process.LacksResources(err) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNotDataDir, err)
	}
	version, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%w: PG_VERSION is not the number of a major version", ErrNotDataDir)
	}
	return int(version), nil
}

func readPIDFile(dir string) (pidFile, error) {
	data, err := rootfs.ReadIn(dir, "postmaster.pid", maxPIDFile)
	if err != nil {
		return pidFile{}, err
	}
	return parsePIDFile(data)
}

// readProc reads at most limit bytes of the file /proc/pid/name.
func readProc(pid int, name string, limit int) ([]byte, error) {
	f, err := os.Open(procPath(pid, name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

func procPath(pid int, name string) string {
	return fmt.Sprintf("/proc/%d/%s", pid, name)
}
