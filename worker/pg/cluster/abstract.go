package cluster

import (
	"net/url"
	"path"
	"path/filepath"
	"strings"
)

// A host that begins with "@" names a socket in the kernel's abstract namespace, as in libpq and in
// unix_socket_directories. pgx takes only hosts that begin with "/" for Unix sockets. So pgx gets an abstract socket as
// a path: abstractMark, then the name with characters such as "/" percent-escaped. The dialer translates the path back.
const abstractMark = "/@"

// isSocketHost reports whether a host names a Unix socket.
func isSocketHost(host string) bool {
	return strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@")
}

// pgxHost converts a host from libpq's form to the form for pgx; see abstractMark.
func pgxHost(host string) string {
	switch {
	case strings.HasPrefix(host, "@"):
		return abstractMark + url.PathEscape(host[1:])
	case strings.HasPrefix(host, "/") && strings.HasPrefix(filepath.Clean(host), abstractMark):
		return "/proc/self/root" + host // a directory whose name begins with "@"
	}
	return host
}

// hostOf reverses pgxHost: it returns the host in libpq's form.
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

// socketAddress converts pgx's path of a Unix socket to the address to dial. The address of an abstract socket begins
// with "@".
func socketAddress(pgxPath string) string {
	if !strings.HasPrefix(pgxPath, abstractMark) {
		return pgxPath
	}
	dir, file := path.Split(pgxPath)
	return hostOf(strings.TrimSuffix(dir, "/")) + "/" + file
}
