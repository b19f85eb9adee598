package debuginfod

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"pg_stat_backtrace/worker/host/rootfs"
)

// maxTempAge is the age at which a temporary file counts as left behind by a killed client.
const maxTempAge = 24 * time.Hour

// entry is a file of the cache.
type entry struct {
	path string
	size int64
	used time.Time
}

// evict removes the least recently used files, except the file keep, until the cache is within its limit. It also
// removes expired misses, and the temporary files of killed clients. It touches only files that this package could have
// made: regular files named debuginfo or executable in a folder whose name is a build-id.
func (c *cache) evict(keep string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, total := c.scan(now)
	if c.limit == 0 {
		return
	}
	sort.Slice(entries, func(i, j int) bool {
		a, b := entries[i], entries[j]
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) < 0
	})
	for _, e := range entries {
		if total <= c.limit {
			return
		}
		if e.path != keep && remove(e.path) {
			total -= e.size
		}
	}
}

// Bounds of the folders that are examined, and of the files in each of them.
const (
	maxFolders = 100_000
	maxFiles   = 1000
)

// scan lists the files of the cache, adds up their sizes (total), and removes expired files.
func (c *cache) scan(now time.Time) (entries []entry, total int64) {
	folders, _ := rootfs.ReadNames(c.dir, maxFolders) // a folder that cannot be read cannot be cleaned either
	missed := now.Add(-c.missTime())
	for _, id := range folders {
		dir := filepath.Join(c.dir, id)
		if info, err := os.Lstat(dir); !ValidID(id) || err != nil || !info.IsDir() {
			continue
		}
		files, _ := rootfs.ReadNames(dir, maxFiles)
		for _, name := range files {
			path := filepath.Join(dir, name)
			info, err := os.Lstat(path) // does not follow a symbolic link
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			switch known := Kind(name) == DebugInfo || Kind(name) == Executable; {
			case known && info.Size() > 0:
				entries = append(entries, entry{path, info.Size(), lastUse(info)})
				total += info.Size()
			case known && info.ModTime().Before(missed):
				remove(path)
			case strings.HasPrefix(name, tempPrefix) && now.Sub(info.ModTime()) > maxTempAge:
				remove(path)
			}
		}
	}
	return entries, total
}

// remove removes a file, and its folder if that is empty.
func remove(path string) bool {
	if os.Remove(path) != nil {
		return false
	}
	_ = os.Remove(filepath.Dir(path)) // fails if it is not empty
	return true
}

// lastUse returns when a file was last read or written, whichever is later.
func lastUse(info fs.FileInfo) time.Time {
	used := info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if read := time.Unix(st.Atim.Unix()); read.After(used) {
			used = read
		}
	}
	return used
}
