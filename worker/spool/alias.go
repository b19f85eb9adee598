package spool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The alias is a symbolic link in the data directory that leads to the spool directory. Requests are written through
// it: when one cannot be, PostgreSQL's own error names the file, and before version 17 nothing can catch that error in
// a parallel query; so it names no place of the host. It lies where base backups leave out what they find.
const (
	aliasName = "pg_stat_tmp/pg_stat_backtrace"
	aliasPath = "/proc/self/cwd/" + aliasName // every server process works in the data directory
)

// alias makes the link if it is not there as it should be, and returns the path to write through; "" when that cannot
// be, and requests go the direct way.
func (s *Spool) alias() string {
	link, leads := filepath.Join(s.cfg.DataDir, aliasName), strings.TrimPrefix(s.dir.path, s.cfg.Root)
	if present, err := os.Readlink(link); err == nil && present == leads {
		return aliasPath
	}
	temporary := link + ".tmp"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if os.Symlink(leads, temporary) != nil || os.Rename(temporary, link) != nil {
		return ""
	}
	return aliasPath
}

// dropAlias removes the link if it leads to this spool.
func (s *Spool) dropAlias() error {
	link := filepath.Join(s.cfg.DataDir, aliasName)
	present, err := os.Readlink(link)
	if err != nil || present != strings.TrimPrefix(s.dir.path, s.cfg.Root) {
		return nil //nolint:nilerr // not there, or somebody else's: nothing to remove
	}
	return os.Remove(link)
}
