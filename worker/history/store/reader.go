package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"
)

// fileLimit bounds the files that a Reader opens: an hour of 1,000 active sessions has 60 MB.
const fileLimit = 2 << 30

var (
	// ErrNoHistory means that nothing was recorded for a cluster.
	ErrNoHistory = errors.New("no history is recorded")
	// ErrFile means that a file of the history cannot be read. The message names it.
	ErrFile = errors.New("unreadable file of the history")
)

// A Reader reads the history of one cluster, also while a worker records it.
type Reader struct {
	dir    string
	Damage []error // an error for each file that could not be read; results do not have its data
}

// Clusters returns the system identifiers of the clusters in a state directory. Without any it returns ErrNoHistory.
func Clusters(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoHistory, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), "cluster="); ok && e.IsDir() && systemID.MatchString(id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w in %s%s", ErrNoHistory, dir, userFolders(entries))
	}
	return ids, nil
}

// userFolders returns the end of an error message, which names the folders of a directory to which the workers of several users
// record; empty: there are none.
func userFolders(entries []fs.DirEntry) string {
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), UserFolder) && e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if names == nil {
		return ""
	}
	return ", but in its folders " + strings.Join(names[:min(len(names), 10)], ", ")
}

// OpenReader opens the history of the cluster with this system identifier. It returns ErrNoHistory if there is none.
func OpenReader(dir, id string) (*Reader, error) {
	if !systemID.MatchString(id) {
		return nil, fmt.Errorf("%w for %q", ErrNoHistory, id)
	}
	r := &Reader{dir: clusterDir(dir, id)}
	if st, err := os.Lstat(r.dir); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("%w for cluster %s in %s", ErrNoHistory, id, dir)
	}
	return r, nil
}

// hours lists the closed hours that overlap a span.
func (r *Reader) hours(since, until time.Time) []closedHour {
	return slices.DeleteFunc(closedHours(r.dir), func(h closedHour) bool {
		return !h.from.Before(until) || !h.from.Add(time.Hour).After(since)
	})
}

func parts(dir, kind string) []string {
	list, _ := filepath.Glob(filepath.Join(dir, kind+"*.parquet"))
	return list
}

// open opens a file, and returns its size. It refuses symbolic links and other files that are not regular, since another user may
// have made the folder.
func open(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrFile, err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil && st.Size() > fileLimit {
		err = fmt.Errorf("%d MB are too large", st.Size()>>20)
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return f, st.Size(), nil
}

// readGroups calls each with the row groups of a file whose first column, a time, overlaps the span. A panic of the Parquet
// library, which a damaged file can cause, becomes an ErrFile.
func readGroups(ctx context.Context, path string, since, until int64, each func(parquet.RowGroup) error) (err error) {
	f, size, err := open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrFile, path, p)
		}
	}()
	p, err := parquet.OpenFile(f, size, parquet.SkipBloomFilters(true))
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	if v, _ := p.Lookup("pg_stat_backtrace.format_version"); v != strconv.Itoa(Version) {
		return fmt.Errorf("%w: %s has format %q, and this program reads format %d", ErrFile, path, v, Version)
	}
	for _, g := range p.RowGroups() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if lo, hi, ok := columnRange(g, 0, parquet.Value.Int64); ok && (hi < since || lo >= until) {
			continue
		}
		if err := each(g); err != nil {
			if errors.Is(err, errEach) {
				return errors.Unwrap(err)
			}
			return fmt.Errorf("%w: %s: %w", ErrFile, path, err)
		}
	}
	return nil
}

// readTable calls each with the rows of a file, from the row groups that overlap the span. It reuses the slice.
func readTable[T any](ctx context.Context, path string, since, until int64, each func([]T) error) (err error) {
	buf := make([]T, 1024)
	return readGroups(ctx, path, since, until, func(g parquet.RowGroup) error { return readGroup(g, buf, each) })
}

// errEach marks errors of the caller's function, so that they do not become an ErrFile.
var errEach = errors.New("caller")

type eachError struct{ err error }

func (e eachError) Error() string        { return e.err.Error() }
func (e eachError) Unwrap() error        { return e.err }
func (e eachError) Is(target error) bool { return target == errEach }

func readGroup[T any](g parquet.RowGroup, buf []T, each func([]T) error) error {
	r := parquet.NewGenericRowGroupReader[T](g)
	defer r.Close()
	for {
		clear(buf) // the reader would append to slices of the former rows
		n, err := r.Read(buf)
		if n > 0 {
			if err := each(buf[:n]); err != nil {
				return eachError{err}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// columnRange returns the least and the greatest value of a column of a row group. ok is false if the file does not say them.
func columnRange[T number](g parquet.RowGroup, column int, value func(parquet.Value) T) (lo, hi T, ok bool) {
	ix, err := g.ColumnChunks()[column].ColumnIndex()
	if err != nil || ix.NumPages() == 0 {
		return 0, 0, false
	}
	lo, hi = value(ix.MinValue(0)), value(ix.MaxValue(0))
	for i := range ix.NumPages() {
		lo, hi = min(lo, value(ix.MinValue(i))), max(hi, value(ix.MaxValue(i)))
	}
	return lo, hi, true
}

// damaged adds the error of an unreadable file to r.Damage and returns nil, so that the other files are read. It returns other
// errors unchanged.
func (r *Reader) damaged(err error) error {
	if errors.Is(err, errBegun) { // the journal has no sweeps
		return nil
	}
	if errors.Is(err, ErrFile) || errors.Is(err, ErrJournal) {
		if !errors.Is(err, fs.ErrNotExist) { // prune has removed the hour meanwhile, which is no damage
			r.Damage = append(r.Damage, err)
		}
		return nil
	}
	return err
}

// Rows calls each with the rows of a span, ordered by time and process.
func (r *Reader) Rows(ctx context.Context, since, until time.Time, each func(*Row) error) error {
	lo, hi := since.UnixMicro(), until.UnixMicro()
	for _, h := range r.hours(since, until) {
		var rows []Row
		for _, path := range parts(h.dir, "rows") {
			err := readTable(ctx, path, lo, hi, func(list []Row) error {
				for i := range list {
					if list[i].Time >= lo && list[i].Time < hi {
						rows = append(rows, list[i])
					}
				}
				return nil
			})
			if err := r.damaged(err); err != nil {
				return err
			}
		}
		slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.PID, b.PID)) })
		for i := range rows {
			if err := each(&rows[i]); err != nil {
				return err
			}
		}
	}
	return r.live(since, until, func(s *Sweep) error {
		for i := range s.Rows {
			if err := each(&s.Rows[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// live calls each with the sweeps of the journal, as readJournal does, if there is a journal.
func (r *Reader) live(since, until time.Time, each func(*Sweep) error) error {
	f, _, err := open(journalPath(r.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return r.damaged(err)
	}
	defer f.Close()
	_, err = readJournal(f, since, until, each)
	return r.damaged(err)
}

// Sweeps calls each with the sweeps of a span, in the order of the hours.
func (r *Reader) Sweeps(ctx context.Context, since, until time.Time, each func(SweepInfo) error) error {
	for _, h := range r.hours(since, until) {
		if err := r.closedSweeps(ctx, h.dir, since.UnixMicro(), until.UnixMicro(), each); err != nil {
			return err
		}
	}
	return r.live(since, until, func(s *Sweep) error {
		if s.Time.Before(since) || !s.Time.Before(until) {
			return nil
		}
		return each(infoOf(s))
	})
}

// closedSweeps calls each with the sweeps of a closed hour within a span.
func (r *Reader) closedSweeps(ctx context.Context, dir string, since, until int64, each func(SweepInfo) error) error {
	for _, path := range parts(dir, "sweeps") {
		err := readTable(ctx, path, since, until, func(list []SweepInfo) error {
			for _, s := range list {
				if s.Time >= since && s.Time < until {
					if err := each(s); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err := r.damaged(err); err != nil {
			return err
		}
	}
	return nil
}

// Stacks returns the stacks with these ids, by id. It reads the hours of a span, and omits stacks that they do not have.
func (r *Reader) Stacks(ctx context.Context, since, until time.Time, want map[int64]bool) (map[int64]Stack, error) {
	found := map[int64]Stack{}
	keep := func(k *Stack) {
		if want[k.ID] {
			found[k.ID] = *k
		}
	}
	for _, h := range r.hours(since, until) {
		for _, path := range parts(h.dir, "stacks") {
			err := readTable(ctx, path, -1<<63, 1<<63-1, func(list []Stack) error {
				for i := range list {
					k := list[i]
					k.Frames = slices.Clone(k.Frames)
					keep(&k)
				}
				return nil
			})
			if err := r.damaged(err); err != nil {
				return nil, err
			}
		}
	}
	err := r.live(since, until, func(s *Sweep) error {
		for i := range s.Stacks {
			keep(&s.Stacks[i])
		}
		return nil
	})
	return found, err
}

// Meta returns the description of the server and the recorder in the newest file. It returns ErrNoHistory if no file has one.
func (r *Reader) Meta() (Meta, error) {
	var m Meta
	f, _, err := open(journalPath(r.dir))
	if err == nil {
		defer f.Close()
		m, err = readJournal(f, forever, forever, func(*Sweep) error { return errStop })
		if err == nil || errors.Is(err, errStop) {
			return m, nil
		}
	}
	list := closedHours(r.dir)
	for i := len(list) - 1; i >= 0; i-- {
		for _, path := range parts(list[i].dir, "sweeps") {
			if m, err := metaOf(path); err == nil {
				return m, nil
			}
		}
	}
	return m, fmt.Errorf("%w in %s", ErrNoHistory, r.dir)
}

func metaOf(path string) (m Meta, err error) {
	f, size, err := open(path)
	if err != nil {
		return m, err
	}
	defer f.Close()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrFile, path, p)
		}
	}()
	p, err := parquet.OpenFile(f, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	text, _ := p.Lookup("pg_stat_backtrace.server")
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return m, nil
}

// Span returns the begin of the first closed hour and the end of the last one. Both are zero if no hour is closed.
func (r *Reader) Span() (first, last time.Time) {
	for _, h := range closedHours(r.dir) {
		if first.IsZero() {
			first = h.from
		}
		last = h.from.Add(time.Hour)
	}
	return first, last
}
