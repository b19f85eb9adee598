package debuginfod

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxTempAge is how old a file of a download must be to be one that a killed client left.
const maxTempAge = 24 * time.Hour

// entry is a file of the cache.
type entry struct {
	path string
	size int64
	used time.Time
}

// evict removes the least recently used files while there are more bytes than the limit allows, but not the one named
// keep; and remembered misses that have expired, and what killed clients of this program left. Nothing is touched but
// files that this package would have made, at places where it would have made them: regular files named debuginfo or
// executable in a folder whose name is a build-id.
func (c *cache) evict(keep string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, total := c.scan(now)
	if c.limit == 0 {
		return
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) })
	for _, e := range entries {
		if total <= c.limit {
			return
		}
		if e.path != keep && remove(e.path) {
			total -= e.size
		}
	}
}

// scan lists the files and removes what has no use any more.
func (c *cache) scan(now time.Time) (entries []entry, total int64) {
	folders, _ := os.ReadDir(c.dir) // what cannot be read cannot be removed either
	missed := now.Add(-c.missTime())
	for _, d := range folders {
		if !d.IsDir() || !ValidID(d.Name()) {
			continue
		}
		dir := filepath.Join(c.dir, d.Name())
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			info, err := f.Info() // of a symbolic link itself
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			path := filepath.Join(dir, f.Name())
			switch known := Kind(f.Name()) == DebugInfo || Kind(f.Name()) == Executable; {
			case known && info.Size() > 0:
				entries = append(entries, entry{path, info.Size(), lastUse(info)})
				total += info.Size()
			case known && info.ModTime().Before(missed):
				remove(path)
			case strings.HasPrefix(f.Name(), tempPrefix) && now.Sub(info.ModTime()) > maxTempAge:
				remove(path)
			}
		}
	}
	return entries, total
}

// remove removes a file, and its folder if that holds nothing else.
func remove(path string) bool {
	if os.Remove(path) != nil {
		return false
	}
	_ = os.Remove(filepath.Dir(path)) // fails if it is not empty
	return true
}

// lastUse is when a file was last read, or written if that is later.
func lastUse(info fs.FileInfo) time.Time {
	used := info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if read := time.Unix(st.Atim.Unix()); read.After(used) {
			used = read
		}
	}
	return used
}
