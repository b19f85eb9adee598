package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/jackc/pgpassfile"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// defaultSocketDirs are the default socket directories of libpq's builds. For these, the password file's entries have
// localhost as the host.
var defaultSocketDirs = []string{"/tmp", "/run/postgresql", "/var/run/postgresql"}

// passfile returns the password file if libpq would read it, or a note with the reason if not.
func (s settings) passfile() (path, note string) {
	path = s["passfile"]
	if path == "" {
		path = filepath.Join(homeDir(), ".pgpass")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", ""
	case !info.Mode().IsRegular():
		return "", fmt.Sprintf("password file %q is not a plain file and is ignored", path)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Sprintf("password file %q has group or world access and is ignored; "+
			"permissions should be u=rw (0600) or less", path)
	}
	return path, ""
}

// passwordFor returns the password for the first host from the password file; empty: the file has none.
func (s settings) passwordFor(config *pgx.ConnConfig, database string) string {
	path, _ := s.passfile()
	if path == "" {
		return ""
	}
	file, err := pgpassfile.ReadPassfile(path)
	if err != nil {
		return ""
	}
	host, port := hostOf(config.Host), strconv.Itoa(int(config.Port))
	if network, _ := pgconn.NetworkAddress(config.Host, config.Port); network != networkUnix {
		return file.FindPassword(host, port, database, config.User)
	}
	if password := file.FindPassword(host, port, database, config.User); password != "" {
		return password
	}
	if slices.Contains(defaultSocketDirs, host) {
		return file.FindPassword("localhost", port, database, config.User)
	}
	return ""
}
