package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/report/units"
)

// A closedHour is a folder of a closed hour, and its size on the disk.
type closedHour struct {
	dir   string // the folder, or the file if aside is set
	from  time.Time
	size  int64
	parts []string // ends of the names of its files: .parquet, and -2.parquet and so on if the hour was closed again
	aside bool     // it is a journal that could not be read (see Writer.setAside)
}

// files returns the paths of the hour's files of a kind.
func (h *closedHour) files(kind string) []string {
	list := make([]string, len(h.parts))
	for i, part := range h.parts {
		list[i] = filepath.Join(h.dir, kind+part)
	}
	return list
}

// read lists the files of the hour. A part of the hour counts only if its file of rows has its name, since that file is finished
// last: until then readers find the part's sweeps in the journal.
func (h *closedHour) read() error {
	entries, err := os.ReadDir(h.dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			h.size += info.Size()
		}
		if part, ok := strings.CutPrefix(e.Name(), "rows"); ok && strings.HasSuffix(part, ".parquet") {
			h.parts = append(h.parts, part)
		}
	}
	return err
}

// remove removes the files of an hour.
func (h *closedHour) remove() error {
	if !h.aside {
		return removeHour(h.dir)
	}
	if err := os.Remove(h.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// asideName is the begin of the name of a journal that could not be read. A number follows.
const asideName = "journal.unreadable-"

// kept lists all that prune may remove from a state directory, the oldest first: the closed hours of all clusters, and the journals
// that could not be read.
func kept(dir string) []closedHour {
	list := closedHours(dir, "cluster=*/")
	for _, path := range glob(dir, "cluster=*/"+asideName+"*") {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			list = append(list, closedHour{dir: path, from: info.ModTime(), size: info.Size(), aside: true})
		}
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return a.from.Compare(b.from) < 0
	})
	return list
}

// glob returns the paths of the files below a directory that match a pattern. The directory itself may have any name.
func glob(dir, pattern string) []string {
	list, _ := fs.Glob(os.DirFS(dir), pattern) // the pattern is valid, and folders that cannot be read are omitted
	for i := range list {
		list[i] = filepath.Join(dir, list[i])
	}
	return list
}

// closedHours lists the closed hours, the oldest first. below is "" in a cluster's folder, and "cluster=*/" in a state directory for
// all clusters. It omits folders that it cannot read.
func closedHours(dir, below string) []closedHour {
	var list []closedHour
	for _, dir := range glob(dir, below+"date=*/hour=*") {
		at, err := time.Parse("date=2006-01-02/hour=15", filepath.Base(filepath.Dir(dir))+"/"+filepath.Base(dir))
		if err != nil {
			continue // not a folder of this package
		}
		if h := (closedHour{dir: dir, from: at}); h.read() == nil {
			list = append(list, h)
		}
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return a.from.Compare(b.from) < 0
	})
	return list
}

// byAge reports whether prune may remove hours because of their age. After the clock was set forward by more than an hour, prune may
// do this only when the new time has lasted for an hour. A wrong clock is usually put right sooner, and removed hours do not return. A
// suspended host counts as such a step, which only delays the removal. list has the hours in the state directory.
func (w *Writer) byAge(now time.Time, list []closedHour) bool {
	step := now.Round(0).Sub(w.begun.Round(0)) - now.Sub(w.begun) // Round(0) removes the reading of the monotonic clock
	switch {
	case step < time.Hour:
		w.stepped = time.Time{}
		return w.plausible(now, list)
	case w.stepped.IsZero():
		w.stepped = now
		w.o.Notes.add("the clock was set forward by " + units.Age(step.Round(time.Minute)) +
			": hours that are too old by the new time stay for an hour")
	case now.Sub(w.stepped) >= time.Hour:
		w.begun, w.stepped = now, time.Time{}
		return true
	}
	return false
}

// plausible reports whether the clock can be right: the Writer has been open for an hour, or an hour of the last day was recorded. At
// the start of a host, the clock can be wrong until it is synchronized. The last two hours prove nothing, since a Writer that was open
// for less than an hour can have recorded them by the wrong clock.
func (w *Writer) plausible(now time.Time, list []closedHour) bool {
	return now.Sub(w.opened) >= time.Hour || slices.ContainsFunc(list, func(h closedHour) bool {
		age := now.Sub(h.from)
		return age >= 2*time.Hour && age <= 25*time.Hour
	})
}

// prune removes closed hours and journals that could not be read, the oldest first, until the rest is within Keep and the size
// limit, and enough space is free. It returns ErrNoSpace if too little space is free and no closed hour is left.
func (w *Writer) prune(now time.Time) error {
	most, err := w.part()
	if err != nil {
		return err
	}
	list := kept(w.o.Dir)
	var total int64
	for _, h := range list {
		total += h.size
	}
	byAge := w.byAge(now, list)
	early := 0       // hours that were removed though they were not too old
	var failed error // of an hour that could not be removed; later hours can make the room instead
	for len(list) > 0 {
		free, err := freeBytes(w.o.Dir)
		if err != nil {
			return err
		}
		h := list[0]
		aged := byAge && now.Sub(h.from.Add(time.Hour)) > w.o.Keep
		if !aged && total <= most && free >= w.o.MinFree {
			break
		}
		list = list[1:]
		if err := h.remove(); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("history: %w", err))
			continue
		}
		total -= h.size
		if !aged {
			early++
		}
	}
	if early > 0 {
		w.o.Notes.add(units.Plural(early, "%d old {hour was|hours were} removed early, because of --record-size or --record-min-free"))
	}
	free, err := freeBytes(w.o.Dir)
	switch {
	case err != nil:
		return err
	case free < w.o.MinFree:
		err = fmt.Errorf("%w: %d MB are free in %s, and %d MB must stay free", ErrNoSpace, free>>20, w.o.Dir, w.o.MinFree>>20)
		return errors.Join(err, failed)
	case failed != nil && (total > most || broken(failed)):
		return failed
	case failed != nil: // an hour is older than Keep
		w.o.Notes.add("an old hour cannot be removed: " + failed.Error())
	}
	return nil
}

// removeOldest removes the oldest closed hour of a state directory that can be removed, or the oldest journal that could not be
// read. It returns false if there is none.
func removeOldest(dir string) bool {
	return slices.ContainsFunc(kept(dir), func(h closedHour) bool { return h.remove() == nil })
}

// full reports whether an error means that the disk or a quota has no room.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// A Remedied is an error of writing to the state directory, with its remedy.
type Remedied struct {
	Err error
	// Remedy is a sentence for an administrator: what to do. It has no full stop.
	Remedy string
}

func (r *Remedied) Error() string { return r.Err.Error() + ": " + r.Remedy }

// Unwrap returns the error without the remedy.
func (r *Remedied) Unwrap() error { return r.Err }

// explain adds the remedy to an error of writing to dir (see Remedied). It returns an error without a known remedy as it is.
func explain(dir string, err error) error {
	if remedy := remedyOf(dir, err); remedy != "" {
		return &Remedied{err, remedy}
	}
	return err
}

func remedyOf(dir string, err error) string {
	var s unix.Statfs_t
	switch {
	case errors.Is(err, ErrNoSpace):
		return "free space there, or lower --record-min-free"
	case errors.Is(err, unix.ENOSPC) && unix.Statfs(dir, &s) == nil && s.Files > 0 && s.Ffree == 0:
		return "remove files from the file system of " + dir + ", which has no free inode"
	case errors.Is(err, unix.ENOSPC):
		return "free space in the file system of " + dir + ", or lower --record-size"
	case errors.Is(err, unix.EDQUOT):
		return "raise the quota of the worker's user, or lower --record-size"
	case errors.Is(err, unix.EFBIG):
		return "let the worker write larger files: raise LimitFSIZE= or ulimit -f"
	case errors.Is(err, unix.EROFS):
		return "mount the file system writable (the kernel's log may have an error of the disk), or give the unit ReadWritePaths=" + dir
	case errors.Is(err, unix.EIO):
		return "look for errors of the disk of " + dir + " in the kernel's log (dmesg)"
	case errors.Is(err, unix.ESTALE), errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return "mount the file system of " + dir + " again"
	}
	return ""
}

// broken reports whether an error means that the file system itself failed. Its files must then be closed, so that an administrator
// can unmount and repair it. A file system without room has not failed.
func broken(err error) bool {
	for _, number := range []unix.Errno{
		unix.EIO, unix.EROFS, unix.ESTALE, unix.ENOTCONN, unix.ENODEV, unix.ENXIO, unix.ENOMEDIUM, unix.EUCLEAN, unix.EBADMSG, unix.ESHUTDOWN,
	} {
		if errors.Is(err, number) {
			return true
		}
	}
	return false
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
