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

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host/rootfs"
)

const dialTimeout = 5 * time.Second

// BySocket finds the server that listens on a unix socket. It opens a connection and closes it without sending data,
// so it needs no database user. Root can call it before BecomeServerUser.
//
// The errors are those of connecting and of ByDataDir, a PoolerError, ErrNotPostmaster, ErrWrongUser, ErrNoAccess and
// ErrNamespace.
func BySocket(ctx context.Context, path string) (Cluster, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := rootfs.Dial(ctx, "unix", path, dialer.DialContext)
	if err != nil {
		return Cluster{}, err
	}
	defer func() { _ = conn.Close() }()
	pid, err := peerOf(conn)
	if err != nil {
		return Cluster{}, err
	}
	if name, ok := poolerName(pid); ok {
		return Cluster{}, &PoolerError{At: path, Name: name, PID: pid}
	}
	return byPostmaster(pid)
}

// byPeer finds the server by the peer credentials of a connection to its unix socket. The kernel records them at
// listen(), so they name the postmaster, whichever of its children serves the connection (unix(7)).
func byPeer(conn net.Conn) (Cluster, error) {
	pid, err := peerOf(conn)
	if err != nil {
		return Cluster{}, err
	}
	return byPostmaster(pid)
}

// peerless returns ErrNamespace if the process that listens on a socket has no id in this PID namespace.
func peerless(path string) error {
	dialer := net.Dialer{Timeout: time.Second}
	reach, done, err := rootfs.Socket(path)
	if err != nil {
		return err
	}
	defer done()
	conn, err := dialer.Dial("unix", reach)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = peerOf(conn)
	return err
}

// peerOf returns the id, in this PID namespace, of the process that listens at the other end of a Unix socket. The
// error is ErrNamespace if the process has none.
func peerOf(conn net.Conn) (int, error) {
	peer, err := credentials(conn)
	if err != nil {
		return 0, err
	}
	if peer.Pid <= 0 {
		return 0, fmt.Errorf("%w: its processes do not exist in this PID namespace; run the worker in the server's (in "+
			"Kubernetes: shareProcessNamespace) or outside of both, on the host", ErrNamespace)
	}
	return int(peer.Pid), nil
}

// credentials returns the credentials of the process that called listen() on the other end of a unix socket.
func credentials(conn net.Conn) (*unix.Ucred, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%w: not a unix socket", ErrNotPostmaster)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, peerErr); err != nil {
		return nil, fmt.Errorf("reading the socket's peer credentials: %w", err)
	}
	return peer, nil
}

// byPostmaster finds the server whose postmaster is the process pid. It verifies this by the process's working
// directory.
func byPostmaster(pid int) (Cluster, error) {
	status, err := process.ReadStatus(pid)
	if err != nil {
		return Cluster{}, fmt.Errorf("%w: the socket's owner: %w", ErrNotPostmaster, err)
	}
	var dir string
	err = rootfs.OfStatus(status).Do(func() (err error) {
		dir, err = postmasterDir(pid, status)
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

// postmasterDir returns the process's working directory if the postmaster.pid there names the process.
func postmasterDir(pid int, status process.Status) (string, error) {
	name := status.Name
	cwd := procPath(pid, "cwd")
	file, err := readPIDFile(cwd)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: process %d (%s) listens on the socket: %w", ErrNotPostmaster, pid, name, err)
	case file.pid != innermost(status):
		return "", fmt.Errorf("%w: process %d (%s) listens on the socket and works in the data directory of %d",
			ErrNotPostmaster, pid, name, file.pid)
	}
	dir, err := os.Readlink(cwd)
	if err != nil {
		return "", fmt.Errorf("%w: process %d: %w", ErrNotPostmaster, pid, err)
	}
	for _, path := range []string{dir, procPath(pid, "root") + dir} {
		if sameFile(path, cwd) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: its data directory %s is not in this mount namespace", ErrNamespace, dir)
}

func sameFile(a, b string) bool {
	infoA, errA := rootfs.Stat(a)
	infoB, errB := rootfs.Stat(b)
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
