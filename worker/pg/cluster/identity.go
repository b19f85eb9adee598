package cluster

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/pg/layout"
)

// Identity names the cluster on this host. It stays the same when the server restarts, and no other cluster of the host
// has it at the same time. The identity is the data directory. For a server with another root directory it is the path
// inside that root and a mark (see mark), because other containers may have the same path. A copy of the data
// directory, such as a standby, has another mark.
func (c Cluster) Identity() string {
	_, inside, ok := rootfs.Split(c.DataDir)
	if !ok {
		return c.DataDir
	}
	return "/" + inside + "#" + mark(c.DataDir)
}

// mark returns a short text that depends on the system identifier, and on the file system and inode of the data
// directory. A part that cannot be read counts as 0.
func mark(dir string) string {
	const bytes = 4
	sum := sha256.New()
	_, _ = fmt.Fprintln(sum, systemIdentifier(dir))
	if d, err := rootfs.OpenDir(dir); err == nil {
		defer func() { _ = d.Close() }()
		_, _ = fmt.Fprintln(sum, directoryNumbers(d))
	}
	return hex.EncodeToString(sum.Sum(nil)[:bytes])
}

// directoryNumbers returns numbers that identify an open directory on this host. They stay the same while the directory's
// file system is mounted, and for most file systems longer.
func directoryNumbers(d *rootfs.Dir) [3]uint64 {
	info, err := rootfs.Stat(d.Path())
	var system unix.Statfs_t
	if err != nil || unix.Statfs(d.Path(), &system) != nil {
		return [3]uint64{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return [3]uint64{}
	}
	return [3]uint64{stat.Ino, uint64(uint32(system.Fsid.Val[0])), uint64(uint32(system.Fsid.Val[1]))}
}

// systemIdentifier reads the identifier that initdb has given to a cluster: the first field of ControlFileData in
// catalog/pg_control.h. It returns 0 if the file cannot be read.
func systemIdentifier(dir string) uint64 {
	const most, size = 1 << 20, 8
	at := layout.Control.SystemIdentifier
	data, err := rootfs.ReadFile(filepath.Join(dir, "global", "pg_control"), most)
	if err != nil || len(data) < at+size {
		return 0
	}
	return binary.NativeEndian.Uint64(data[at:])
}
