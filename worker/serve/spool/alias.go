package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"pg_stat_backtrace/worker/host/rootfs"
)

// The alias is a symbolic link in the data directory that leads to the spool directory. The server writes requests through
// it. If a write fails, PostgreSQL's own error names the file, and before version 17 a parallel query cannot catch that
// error. With the alias, the error shows no path of the host, only the path of the link. The link is in a directory that base
// backups leave out.
const (
	aliasDir  = "pg_stat_tmp"
	aliasLeaf = "pg_stat_backtrace"
	aliasPath = "/proc/self/cwd/" + aliasDir + "/" + aliasLeaf // the working directory of each server process is the data directory
)

// alias makes the link if it is missing or wrong, and returns the path through which requests are written. It returns
// "" if it cannot make the link. Requests then use the path of the spool directory.
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

// errOtherMount means that the server has other files mounted at the directory of the alias.
var errOtherMount = errors.New("another directory is mounted there for the server")

// openAliasDir opens the directory of the link. If the server has another root directory, openAliasDir follows no link out of
// the data directory, because such a link may lead to different places for the server and for this process.
func (s *Spool) openAliasDir() (*rootfs.Dir, error) {
	if s.cfg.Root != "" {
		return s.data.Within(aliasDir)
	}
	dir, err := rootfs.OpenDir(s.data.Join(aliasDir))
	if err == nil && s.isOther(dir.Path()) {
		err = errOtherMount
	}
	return dir, err
}

// isOther reports whether the server sees another directory in the place of path, the directory of the alias.
func (s *Spool) isOther(path string) bool {
	if s.cfg.Postmaster == nil {
		return false
	}
	own, err1 := rootfs.Stat(path)
	its, err2 := rootfs.Stat(fmt.Sprintf("/proc/%d/cwd/%s", s.cfg.Postmaster(), aliasDir))
	return err1 == nil && (errors.Is(err2, fs.ErrNotExist) || err2 == nil && !os.SameFile(own, its))
}

// dropAlias removes the link if it leads to this spool.
func (s *Spool) dropAlias() error {
	dir, err := s.openAliasDir()
	if err != nil {
		return nil // without its directory, the link does not exist
	}
	defer func() { _ = dir.Close() }()
	present, err := os.Readlink(dir.Join(aliasLeaf))
	if err != nil || present != s.dir.name {
		return nil // the link is missing, or belongs to another spool
	}
	return os.Remove(dir.Join(aliasLeaf))
}
