package cluster

import (
	"net/url"
	"path"
	"path/filepath"
	"strings"
)

// A host that begins with "@" names a socket in the kernel's abstract namespace, as in libpq and in
// unix_socket_directories. pgx takes only hosts that begin with "/" for Unix sockets. So pgx gets the name of an
// abstract socket as a path that begins with abstractMark, with the characters escaped that a path would not keep. The
// dialer translates the path back.
const abstractMark = "/@"

// isSocketHost reports whether a host names a Unix socket.
func isSocketHost(host string) bool {
	return strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@")
}

// pgxHost returns a host as pgx gets it.
func pgxHost(host string) string {
	switch {
	case strings.HasPrefix(host, "@"):
		return abstractMark + url.PathEscape(host[1:])
	case strings.HasPrefix(host, "/") && strings.HasPrefix(filepath.Clean(host), abstractMark):
		return "/proc/self/root" + host // a directory whose name begins with "@"
	}
	return host
}

// hostOf returns the host that pgx got from pgxHost, as libpq writes it.
func hostOf(host string) string {
	escaped, marked := strings.CutPrefix(host, abstractMark)
	if !marked {
		return host
	}
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return host
	}
	return "@" + name
}

// socketAddress returns the address of a Unix socket for which pgx has the given path.
func socketAddress(pgxPath string) string {
	if !strings.HasPrefix(pgxPath, abstractMark) {
		return pgxPath
	}
	dir, file := path.Split(pgxPath)
	return hostOf(strings.TrimSuffix(dir, "/")) + "/" + file
}
