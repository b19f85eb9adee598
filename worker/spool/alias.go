package spool

import (
	"errors"
	"io/fs"
	"os"

	"pg_stat_backtrace/worker/host/rootfs"
)

// The alias is a symbolic link in the data directory that leads to the spool directory. Requests are written through
// it: when one cannot be, PostgreSQL's own error names the file, and before version 17 nothing can catch that error in
// a parallel query; so it names no place of the host. It lies where base backups leave out what they find.
const (
	aliasDir  = "pg_stat_tmp"
	aliasLeaf = "pg_stat_backtrace"
	aliasPath = "/proc/self/cwd/" + aliasDir + "/" + aliasLeaf // every server process works in the data directory
)

// alias makes the link if it is not there as it should be, and returns the path to write through; "" when that cannot
// be, and requests go the direct way.
func (s *Spool) alias() string {
	dir, err := s.openAliasDir()
	if err != nil {
		return ""
	}
	defer func() { _ = dir.Close() }()
	link := dir.Join(aliasLeaf)
	if present, err := os.Readlink(link); err == nil && present == s.dir.name {
		return aliasPath
	}
	temporary := link + ".tmp"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if os.Symlink(s.dir.name, temporary) != nil || os.Rename(temporary, link) != nil {
		return ""
	}
	return aliasPath
}

// openAliasDir opens the directory of the link. In another root directory it has to be one of the data directory: a
// link there may lead elsewhere for the server than for this process.
func (s *Spool) openAliasDir() (*rootfs.Dir, error) {
	if s.cfg.Root == "" {
		return rootfs.OpenDir(s.data.Join(aliasDir))
	}
	return s.data.Within(aliasDir)
}

// dropAlias removes the link if it leads to this spool.
func (s *Spool) dropAlias() error {
	dir, err := s.openAliasDir()
	if err != nil {
		return nil // then there is no link either
	}
	defer func() { _ = dir.Close() }()
	present, err := os.Readlink(dir.Join(aliasLeaf))
	if err != nil || present != s.dir.name {
		return nil // not there, or somebody else's: nothing to remove
	}
	return os.Remove(dir.Join(aliasLeaf))
}
