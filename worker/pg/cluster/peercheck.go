package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
)

// Errors about the process at the other end of a socket, before any data is sent.
var (
	// ErrImpostor means that a process of another user listens on the server's socket.
	ErrImpostor = errors.New("a process of another user listens on the server's socket")
	// ErrUnsafeSocket means that every user may create a socket in the directory of the server's socket.
	ErrUnsafeSocket = errors.New("the socket's directory is writable by everybody")
	// ErrUnsafeName means that a socket is abstract. Every user may create an abstract socket of any name.
	ErrUnsafeName = errors.New("every user may listen on an abstract socket")
)

// guardLogin protects a connection's password from processes other than the server (o.cluster, nil if it is not known
// yet). On a unix socket it checks the listening process before any data is sent. A server below another root is in a
// container, whose owner can make any program listen. So such a server gets no password from a password file of this
// host, and none in clear text. own means that the connection string, the service or the environment has the password.
func guardLogin(config *pgx.ConnConfig, own bool, o origin) {
	c := o.cluster
	if o.foreign || c != nil && c.Root != "" {
		config.RequireAuth = withoutReadable(config.RequireAuth)
	}
	if c == nil {
		return
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := checkPeer(conn, c.UID); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", address, err), conn.Close())
		}
		return conn, nil
	}
	if c.Root != "" && !own {
		config.Password = ""
	}
}

// readable are the methods in which the server gets the password, or a hash of it that replaces it (MD5). With SCRAM it
// gets neither.
var readable = []string{"password", "md5"}

// withoutReadable excludes the methods in readable from a value of require_auth, unless the value names them. A list of
// permitted methods is returned unchanged. To a list of excluded methods ("!md5"), withoutReadable adds the methods in
// readable.
func withoutReadable(require string) string {
	if require != "" && !strings.HasPrefix(strings.TrimSpace(require), "!") {
		return require
	}
	var excluded []string
	for method := range strings.SplitSeq(require, ",") {
		if method = strings.TrimSpace(method); method != "" {
			excluded = append(excluded, method)
		}
	}
	for _, method := range readable {
		if !slices.Contains(excluded, "!"+method) {
			excluded = append(excluded, "!"+method)
		}
	}
	return strings.Join(excluded, ",")
}

// adviseMethod adds advice to an error about the method of authentication, and returns other errors unchanged.
func adviseMethod(config *pgx.ConnConfig, err error) error {
	const refused = "require_auth check failed" // compared as text, because pgconn has no value for this error
	if config.RequireAuth == "" || config.RequireAuth[0] != '!' || !strings.Contains(err.Error(), refused) {
		return err
	}
	return fmt.Errorf("%w; use scram-sha-256, or, if every such server may learn the password, name the method in the "+
		"connection string: require_auth=md5 or require_auth=password", err)
}

// checkPeer returns an error unless the process at the other end of a unix socket belongs to the user or to root. It
// returns nil for a connection that is not a unix socket.
func checkPeer(conn net.Conn, uid int) error {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	switch err = errors.Join(err, peerErr); {
	case err != nil:
		return fmt.Errorf("reading the socket's peer credentials: %w", err)
	case int(peer.Uid) != uid && peer.Uid != 0:
		return fmt.Errorf("%w: process %d, of user %d and not %d", ErrImpostor, peer.Pid, peer.Uid, uid)
	}
	return nil
}

// trusted returns the sockets by which root may search for a server. Root changes to the user of the server that it
// finds, so no other user may be able to create a socket there. A worker of any other user keeps its user, and may
// use all paths.
func trusted(paths []string) (safe []string, err error) {
	if os.Geteuid() != 0 {
		return paths, nil
	}
	for _, path := range paths {
		if strings.HasPrefix(path, "@") {
			err = fmt.Errorf("%w: %s; as root, name the server's data directory with -D", ErrUnsafeName, path)
			continue
		}
		dir := filepath.Dir(path)
		info, statErr := rootfs.Stat(dir)
		if statErr == nil && info.Mode().Perm()&0o002 != 0 {
			err = fmt.Errorf("%w: %s; as root, name the server's data directory with -D", ErrUnsafeSocket, dir)
			continue
		}
		safe = append(safe, path)
	}
	if len(safe) > 0 {
		err = nil
	}
	return safe, err
}
