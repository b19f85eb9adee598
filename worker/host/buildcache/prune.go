package buildcache

import (
	"cmp"
	"errors"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// entry is a file of a folder.
type entry struct {
	name  string
	size  int64
	mtime time.Time
}

// prune removes the least recently used files until at most the given number of files and bytes is left. It also removes
// files that were never completed.
func prune(dir *os.File, files int, bytes int64) error {
	const mostNames = 1 << 14 // more than this program ever leaves in a folder
	names, err := dir.Readdirnames(mostNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	kept := make([]entry, 0, len(names))
	total := int64(0)
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		e := entry{name, st.Size, time.Unix(st.Mtim.Unix())}
		if strings.HasPrefix(name, temporary) && abandoned(e.mtime) {
			remove(dir, name)
			continue
		}
		kept = append(kept, e)
		total += e.size
	}
	sort.Slice(kept, func(i, j int) bool {
		a, b := kept[i], kept[j]
		return cmp.Or(a.mtime.Compare(b.mtime), cmp.Compare(a.name, b.name)) < 0
	})
	for len(kept) > 0 && (len(kept) > files || total > bytes) {
		remove(dir, kept[0].name)
		total -= kept[0].size
		kept = kept[1:]
	}
	return nil
}

// abandoned reports whether the program that was writing a temporary file must have ended. since is the time of the
// last write. A program needs less than an hour for a file. A time more than an hour ahead comes from a wrong clock,
// and also counts as abandoned.
func abandoned(since time.Time) bool {
	const longest = time.Hour
	age := time.Since(since)
	return age > longest || age < -longest
}

// remove removes a file. It ignores errors, because another process may have removed the file already.
func remove(dir *os.File, name string) { _ = unix.Unlinkat(int(dir.Fd()), name, 0) }
