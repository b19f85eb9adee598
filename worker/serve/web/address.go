package web

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/limits"
)

// Address is the address on which the listener accepts connections. The zero value means that there is no listener.
type Address struct {
	// Network is tcp or unix.
	Network string
	// Path is the path of a Unix socket.
	Path string
	// Host and Port are the address of a TCP socket. Host is an IP address or localhost.
	Host string
	Port int
}

// ErrAddress means that a text is not an address in one of the forms of ParseAddress.
var ErrAddress = errors.New("invalid address")

const (
	unixNetwork = "unix"
	unixPrefix  = "unix:"
	localhost   = "localhost"
	maxPath     = 107 // bytes, of struct sockaddr_un without the final zero
)

// ParseAddress reads "IP:PORT", "localhost:PORT" or "unix:/PATH". The error wraps ErrAddress.
func ParseAddress(text string) (Address, error) {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		switch {
		case !filepath.IsAbs(path):
			return Address{}, fmt.Errorf("%w %q: the path of a Unix socket must be absolute", ErrAddress, text)
		case len(path) > maxPath:
			return Address{}, fmt.Errorf("%w %q: the path of a Unix socket has at most %d bytes", ErrAddress, text, maxPath)
		case strings.ContainsRune(path, 0):
			return Address{}, fmt.Errorf("%w: the path has a zero byte", ErrAddress)
		}
		return Address{Network: unixNetwork, Path: filepath.Clean(path)}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return Address{}, fmt.Errorf("%w %q: give IP:PORT or unix:/PATH", ErrAddress, text)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return Address{}, fmt.Errorf("%w %q: the port must be a number from 0 to 65535", ErrAddress, text)
	}
	if number > 0 && number < limits.MinPort {
		return Address{}, fmt.Errorf("%w %q: the port must be %d or higher, or 0 for any free port", ErrAddress, text, limits.MinPort)
	}
	if host != localhost {
		if _, err := netip.ParseAddr(host); err != nil {
			return Address{}, fmt.Errorf("%w %q: give an IP address, such as 127.0.0.1 or 0.0.0.0, before the port",
				ErrAddress, text)
		}
	}
	return Address{Network: "tcp", Host: host, Port: int(number)}, nil
}

// Loopback reports whether only programs on this host reach the address.
func (a Address) Loopback() bool {
	if a.Network == unixNetwork || a.Host == localhost {
		return true
	}
	ip, err := netip.ParseAddr(a.Host)
	return err == nil && ip.Unmap().IsLoopback()
}

// String returns the address in the form of ParseAddress.
func (a Address) String() string {
	if a.Network == unixNetwork {
		return unixPrefix + a.Path
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(a.Port))
}

// Permissions of a Unix socket. Every user may connect if clients need a token, because then the token protects the socket.
const (
	ownerOnly = 0o600
	everyUser = 0o666
)

// staleTimeout is the timeout of a connection to an existing Unix socket. removeStale makes this connection to find out
// whether the socket is in use.
const staleTimeout = time.Second

// listen opens the address. If open is set, every user can connect to a Unix socket; otherwise only the user of this
// process.
func (a Address) listen(ctx context.Context, open bool) (net.Listener, error) {
	if a.Network != unixNetwork {
		var config net.ListenConfig
		host := a.Host
		if host == localhost {
			host = "127.0.0.1" // so that no name is resolved
		}
		return config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(a.Port)))
	}
	if err := removeStale(ctx, a.Path); err != nil {
		return nil, err
	}
	mode := uint32(ownerOnly)
	if open {
		mode = everyUser
	}
	// The kernel creates the socket's file with the mode that the socket has at bind, less the umask. So the file has these
	// permissions from the start.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failure error
		err := c.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), mode) })
		return errors.Join(err, failure)
	}}
	listener, err := config.Listen(ctx, unixNetwork, a.Path)
	if err == nil && open {
		err = rootfs.SetMode(a.Path, unix.S_IFSOCK, everyUser) // the umask may have removed permissions
		if err != nil {
			_ = listener.Close()
		}
	}
	return listener, err
}

// ErrSocketLost means that the path of a Unix socket is gone or leads to another file, so that no client can connect.
var ErrSocketLost = errors.New("the file of the socket was removed or replaced")

// unixSocket is a listener on a Unix socket and its file.
type unixSocket struct {
	listener *net.UnixListener
	file     fs.FileInfo
}

// openedSocket returns the Unix socket of a new listener; nil: the listener is of another kind.
func openedSocket(l net.Listener) *unixSocket {
	listener, ok := l.(*net.UnixListener)
	if !ok {
		return nil
	}
	file, err := os.Lstat(l.Addr().String())
	if err != nil {
		file = nil // the file was removed already
	}
	return &unixSocket{listener: listener, file: file}
}

// lost reports whether the path of the socket leads to no file or to another file. If so, lost also ensures that closing the
// listener does not remove that other file.
func (u *unixSocket) lost() bool {
	if u == nil {
		return false
	}
	now, err := os.Lstat(u.listener.Addr().String())
	if err == nil && u.file != nil && os.SameFile(now, u.file) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	u.listener.SetUnlinkOnClose(false)
	return true
}

// removeStale removes the socket's file that an ended listener has left. It returns an error if a listener still uses
// it.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	dialer := net.Dialer{Timeout: staleTimeout}
	conn, err := dialer.DialContext(ctx, unixNetwork, path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("%s: %w", path, unix.EADDRINUSE)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
