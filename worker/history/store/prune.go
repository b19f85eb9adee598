package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A closedHour is a folder of a closed hour, and its size on the disk.
type closedHour struct {
	dir  string
	from time.Time
	size int64
}

// closedHours lists the closed hours in the folders that match pattern, the oldest first: one cluster's folder, or "cluster=*" in
// a state directory for all clusters. It omits folders that it cannot read.
func closedHours(pattern string) []closedHour {
	dirs, _ := filepath.Glob(filepath.Join(pattern, "date=*", "hour=*"))
	var list []closedHour
	for _, dir := range dirs {
		at, err := time.Parse("date=2006-01-02/hour=15", filepath.Base(filepath.Dir(dir))+"/"+filepath.Base(dir))
		if err != nil {
			continue // not a folder of this package
		}
		h := closedHour{dir: dir, from: at}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				h.size += info.Size()
			}
		}
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b closedHour) int { return a.from.Compare(b.from) })
	return list
}

// prune removes closed hours, the oldest first, until the rest is within Keep and the size limit, and enough space is free. It
// returns ErrNoSpace if too little space is free and no closed hour is left.
func (w *Writer) prune(now time.Time) error {
	most, err := w.part()
	if err != nil {
		return err
	}
	list := closedHours(filepath.Join(w.o.Dir, "cluster=*"))
	var total int64
	for _, h := range list {
		total += h.size
	}
	for len(list) > 0 {
		free, err := freeBytes(w.o.Dir)
		if err != nil {
			return err
		}
		h := list[0]
		if now.Sub(h.from.Add(time.Hour)) <= w.o.Keep && total <= most && free >= w.o.MinFree {
			return nil
		}
		if err := removeHour(h.dir); err != nil {
			return fmt.Errorf("history: %w", err)
		}
		total -= h.size
		list = list[1:]
	}
	free, err := freeBytes(w.o.Dir)
	if err != nil {
		return err
	}
	if free < w.o.MinFree {
		return fmt.Errorf("%w: %d MB are free in %s, and %d MB must stay free", ErrNoSpace, free>>20, w.o.Dir, w.o.MinFree>>20)
	}
	return nil
}

// removeOldest removes the oldest closed hour of a state directory, if there is one.
func removeOldest(dir string) {
	if list := closedHours(filepath.Join(dir, "cluster=*")); len(list) > 0 {
		_ = removeHour(list[0].dir) // the next sweep reports the full disk
	}
}

// full reports whether an error means that the disk or a quota has no room.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// explain adds the cause and the remedy to some errors of writing to the disk. It returns other errors as they are.
func explain(dir string, err error) error {
	var s unix.Statfs_t
	switch {
	case errors.Is(err, unix.ENOSPC) && unix.Statfs(dir, &s) == nil && s.Files > 0 && s.Ffree == 0:
		return fmt.Errorf("%w: no inode is free in the file system of %s: remove files", err, dir)
	case errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: raise the quota of the worker's user, or lower --record-size", err)
	case errors.Is(err, unix.EFBIG):
		return fmt.Errorf("%w: the worker may not write so large a file: raise LimitFSIZE= or ulimit -f", err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: mount it writable, or give the unit ReadWritePaths=%s", err, dir)
	}
	return err
}

// part returns the number of bytes that Dir may use: Size, or an equal part of Size with Options.Shared.
func (w *Writer) part() (int64, error) {
	if !w.o.Shared {
		return w.o.Size, nil
	}
	entries, err := os.ReadDir(filepath.Dir(w.o.Dir))
	if err != nil {
		return 0, fmt.Errorf("history: %w", err)
	}
	folders := int64(0)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), UserFolder) && e.IsDir() {
			folders++
		}
	}
	return w.o.Size / max(1, folders), nil
}

func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("history: %s: %w", dir, err)
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:unconvert // its type depends on the architecture
}

// removeHour removes the files of an hour. It then removes the folders of the hour and of the day if they are empty. It does not
// remove files of other programs.
func removeHour(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another worker has removed the hour
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n := e.Name(); strings.HasSuffix(n, ".parquet") || strings.HasSuffix(n, ".parquet.tmp") {
			if err := os.Remove(filepath.Join(dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	_ = os.Remove(filepath.Dir(dir)) // fails as long as the day has other hours
	return nil
}
