package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

const dialTimeout = 5 * time.Second

// BySocket finds the server that listens on the unix socket with the given path. It opens a connection and closes it
// without a word, so it needs no database user: root can use it before it becomes the server's user.
//
// The errors are those of connecting, ErrNotPostmaster, ErrWrongUser, ErrNoAccess and ErrNamespace.
func BySocket(ctx context.Context, path string) (Cluster, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return Cluster{}, err
	}
	defer func() { _ = conn.Close() }()
	return byPeer(conn)
}

// byPeer finds the server by the peer credentials of a connection to its unix socket. The kernel notes them when a
// process calls listen(), so they name the postmaster whichever of its children serves the connection (unix(7)).
func byPeer(conn net.Conn) (Cluster, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return Cluster{}, fmt.Errorf("%w: not a unix socket", ErrNotPostmaster)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return Cluster{}, err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, peerErr); err != nil {
		return Cluster{}, fmt.Errorf("reading the socket's peer credentials: %w", err)
	}
	if peer.Pid <= 0 {
		return Cluster{}, fmt.Errorf("%w: its process id does not exist in this PID namespace", ErrNamespace)
	}
	return byPostmaster(int(peer.Pid))
}

// byPostmaster makes sure that the process is a postmaster, through the directory it works in.
func byPostmaster(pid int) (Cluster, error) {
	status, err := procfs.ReadStatus(pid)
	if err != nil {
		return Cluster{}, fmt.Errorf("%w: the socket's owner: %w", ErrNotPostmaster, err)
	}
	if err := samePIDNamespace(pid, status.NSPID); err != nil {
		return Cluster{}, err
	}
	var dir string
	err = asUserOf(status, func() (err error) {
		dir, err = postmasterDir(pid, status.Name)
		return err
	})
	if errors.Is(err, fs.ErrPermission) {
		return Cluster{}, noAccess(pid, status)
	}
	if err != nil {
		return Cluster{}, err
	}
	return ByDataDir(dir)
}

// postmasterDir returns the data directory that the process works in, if there is one that calls it its postmaster.
func postmasterDir(pid int, name string) (string, error) {
	cwd := procPath(pid, "cwd")
	file, err := readPIDFile(cwd)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: process %d (%s) listens on the socket: %w", ErrNotPostmaster, pid, name, err)
	case file.pid != pid:
		return "", fmt.Errorf("%w: process %d (%s) listens on the socket and works in the data directory of %d",
			ErrNotPostmaster, pid, name, file.pid)
	}
	dir, err := os.Readlink(cwd)
	if err != nil {
		return "", fmt.Errorf("%w: process %d: %w", ErrNotPostmaster, pid, err)
	}
	if !sameFile(dir, cwd) {
		return "", fmt.Errorf("%w: its data directory %s is not in this mount namespace", ErrNamespace, dir)
	}
	return dir, nil
}

// samePIDNamespace makes sure that the process ids which the server tells to SQL mean the same processes here. The
// nested ids are public; the namespace itself can only be compared by who may read the process, and is not needed when
// there is just one id.
func samePIDNamespace(pid int, ids []int) error {
	if len(ids) <= 1 {
		return nil
	}
	own, err1 := procfs.Namespace(os.Getpid(), "pid")
	other, err2 := procfs.Namespace(pid, "pid")
	if err1 == nil && err2 == nil && own == other {
		return nil
	}
	return fmt.Errorf("%w: process %d is process %d in its own PID namespace; start the worker there",
		ErrNamespace, pid, ids[len(ids)-1])
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// owner returns the numeric owner of a file.
func owner(info fs.FileInfo) (uid int, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}
