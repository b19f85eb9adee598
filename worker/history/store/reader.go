package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
	"unsafe"

	"github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/report/units"
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
	Damage []error // an error for each file or part of a file that could not be read, so that its data is missing in the results

	together int // instead of maxTogether, for tests; 0: maxTogether
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

// hours returns the closed hours that overlap a span.
func (r *Reader) hours(since, until time.Time) []closedHour {
	return slices.DeleteFunc(closedHours(r.dir, ""), func(h closedHour) bool {
		return !h.from.Before(until) || !h.from.Add(time.Hour).After(since)
	})
}

// recorded has the files that are read for a span.
type recorded struct {
	hours   []closedHour // that overlap the span
	journal *os.File     // nil: there is none, or hours has its sweeps
}

// find opens the journal and then lists the closed hours. In this order no hour is missing or found twice, although the worker may
// close the hour of the journal meanwhile: the open file still has the hour's sweeps, and counts only if they are not in the list.
func (r *Reader) find(since, until time.Time) (found recorded, err error) {
	f, first, err := r.openJournal()
	if err := r.damaged(err); err != nil {
		return found, err
	}
	found = recorded{r.hours(since, until), f}
	for i := range found.hours {
		h := &found.hours[i]
		if f == nil || !h.from.Equal(first.Truncate(time.Hour)) {
			continue
		}
		if closed, err := h.has(f); closed && err == nil {
			found.close()
			found.journal = nil
		}
	}
	return found, nil
}

func (f *recorded) close() {
	if f.journal != nil {
		f.journal.Close()
	}
}

// open opens a file, and returns its size. It refuses symbolic links and other files that are not regular, since another user may
// have made the folder and a link in it.
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

// readGroups calls the callback each with the row groups of a file whose first column, a time, overlaps the span. A panic of the
// Parquet library, which a damaged file can cause, becomes an ErrFile. The callback must call checkGroup before it reads a group.
func readGroups(ctx context.Context, path string, since, until int64, each func(p *parquetFile, group int) error) error {
	p, err := openParquet(path)
	if err != nil {
		return err
	}
	defer p.close()
	for i := range p.groups {
		if err := ctx.Err(); err != nil {
			return err
		}
		if lo, hi, ok := p.integers(i, 0); ok && (hi < since || lo >= until) {
			continue
		}
		if err := p.guard(func() error { return each(p, i) }); err != nil {
			return err
		}
	}
	return nil
}

// readTable calls the callback each with the rows of a file as T, from the row groups that overlap the span. T must begin with a time.
func readTable[T any](ctx context.Context, path string, since, until int64, each func([]T) error) error {
	return readGroups(ctx, path, since, until, func(p *parquetFile, group int) error { return readGroup(p, group, each) })
}

// errEach marks errors of the caller's callback each, so that they do not become an ErrFile.
var errEach = errors.New("caller")

type eachError struct{ err error }

func (e eachError) Error() string        { return e.err.Error() }
func (e eachError) Unwrap() error        { return e.err }
func (e eachError) Is(target error) bool { return target == errEach }

// readGroup calls each with the rows of a group as T.
func readGroup[T any](p *parquetFile, group int, each func([]T) error) error {
	texts, err := p.checkGroup(group)
	if err != nil {
		return err
	}
	buf := make([]T, max(1, min(maxBatch, batchTexts/max(1, texts))))
	r := parquet.NewGenericRowGroupReader[T](p.groups[group])
	defer r.Close()
	for left := p.meta.RowGroups[group].NumRows; ; {
		clear(buf) // otherwise the library appends to slices of the rows before
		n, err := r.Read(buf)
		if left -= int64(n); left < 0 {
			return beyond("more rows than its group has")
		}
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

// damaged adds the error of an unreadable file to r.Damage and returns nil, so that the other files are read. It returns other
// errors as they are.
func (r *Reader) damaged(err error) error {
	if errors.Is(err, errBegun) { // no damage: the journal has no sweep yet
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

// maxTogether bounds the rows of an hour that Rows puts in order at a time, more than the rows of a group. maxTogetherBytes bounds
// the bytes of their texts and blockers.
const (
	maxTogether      = 512 << 10
	maxTogetherBytes = 256 << 20
)

// errTogether means that a span has more rows than maxTogether. In a span of a second, the file cannot be from this package.
var errTogether = fmt.Errorf("%w: too many rows at one time", ErrFile)

// Rows calls the callback each for every row of a span, ordered by time and process.
func (r *Reader) Rows(ctx context.Context, since, until time.Time, each func(*Row) error) error {
	found, err := r.find(since, until)
	if err != nil {
		return err
	}
	defer found.close()
	j, err := r.openSweeps(found.journal, since, until)
	if err != nil {
		return err
	}
	defer j.close()
	// The journal is of an earlier hour than the last closed one if the clock was set back. So its sweeps are passed in between.
	live := func(before int64) error {
		return r.damaged(j.pass(before, func(s *Sweep) error {
			for i := range s.Rows {
				if err := each(&s.Rows[i]); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for i := range found.hours {
		h := &found.hours[i]
		lo, hi := max(since.UnixMicro(), h.from.UnixMicro()), min(until.UnixMicro(), h.from.Add(time.Hour).UnixMicro())
		err := r.hourRows(ctx, h, lo, hi, func(row *Row) error {
			if err := live(row.Time); err != nil {
				return err
			}
			return each(row)
		})
		if err != nil {
			return err
		}
	}
	err = live(math.MaxInt64)
	r.Damage = append(r.Damage, j.damage()...)
	return err
}

// rowGroup is a group of rows of an hour.
type rowGroup struct {
	file   *parquetFile
	number int
	lo, hi int64
}

// hourRows calls the callback each with the rows of an hour. Row groups that do not overlap in time are read one after the other,
// because a whole hour of many sessions takes much memory.
func (r *Reader) hourRows(ctx context.Context, h *closedHour, lo, hi int64, each func(*Row) error) error {
	var groups []rowGroup
	for _, path := range h.files("rows") {
		p, err := openParquet(path)
		if err := r.damaged(err); err != nil {
			return err
		}
		if err != nil {
			continue
		}
		defer p.close()
		for i := range p.groups {
			g := rowGroup{p, i, -1 << 63, 1<<63 - 1}
			if first, last, ok := p.integers(i, 0); ok {
				g.lo, g.hi = first, last
			}
			if g.hi >= lo && g.lo < hi {
				groups = append(groups, g)
			}
		}
	}
	sort.SliceStable(groups, func(i, j int) bool {
		a, b := groups[i], groups[j]
		return cmp.Compare(a.lo, b.lo) < 0
	})
	for len(groups) > 0 {
		n, last := 1, groups[0].hi
		for n < len(groups) && groups[n].lo <= last {
			last, n = max(last, groups[n].hi), n+1
		}
		if err := r.groupRows(ctx, groups[:n], lo, hi, each); err != nil {
			return err
		}
		groups = groups[n:]
	}
	return nil
}

// groupRows calls the callback each with the rows of groups, in order. If they are too many to put in order at a time, it reads the
// groups again for each half of the span.
func (r *Reader) groupRows(ctx context.Context, groups []rowGroup, lo, hi int64, each func(*Row) error) error {
	known := len(r.Damage)
	err := r.rowsTogether(ctx, groups, lo, hi, each)
	if !errors.Is(err, errTogether) {
		return err
	}
	r.Damage = r.Damage[:known]
	first, last := groups[0].lo, groups[0].hi
	for _, g := range groups {
		first, last = min(first, g.lo), max(last, g.hi)
	}
	lo, hi = max(lo, first), min(hi, max(last, last+1))
	if hi-lo <= time.Second.Microseconds() {
		return r.damaged(err)
	}
	middle := lo + (hi-lo)/2
	if err := r.groupRows(ctx, groups, lo, middle, each); err != nil {
		return err
	}
	return r.groupRows(ctx, groups, middle, hi, each)
}

// rowsTogether is groupRows for a span with few rows. It returns errTogether, and has not called the callback, if they are too many.
func (r *Reader) rowsTogether(ctx context.Context, groups []rowGroup, lo, hi int64, each func(*Row) error) error {
	var rows []Row
	texts, bytes := shared{}, 0
	for _, g := range groups {
		if g.hi < lo || g.lo >= hi {
			continue
		}
		impossible := 0
		err := g.file.guard(func() error {
			return readGroup(g.file, g.number, func(list []Row) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				for i := range list {
					if list[i].Time < lo || list[i].Time >= hi {
						continue
					}
					if !list[i].possible() {
						impossible++
						continue
					}
					bytes += texts.share(&list[i]) + len(list[i].BlockedBy)*int(unsafe.Sizeof(Blocker{}))
					if len(rows) >= cmp.Or(r.together, maxTogether) || bytes > maxTogetherBytes {
						return fmt.Errorf("%w: %s", errTogether, g.file.path)
					}
					rows = append(rows, list[i])
				}
				return nil
			})
		})
		if errors.Is(err, errTogether) {
			return err
		}
		if err := r.damaged(err); err != nil {
			return err
		}
		r.impossible(g.file.path, "row", impossible)
	}
	sort.Slice(rows, func(i, j int) bool {
		a, b := rows[i], rows[j]
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.PID, b.PID)) < 0
	})
	for i := range rows {
		if err := each(&rows[i]); err != nil {
			return err
		}
	}
	return nil
}

// live calls the callback each with the sweeps of the journal that have stacks, without their rows.
func (r *Reader) live(each func(*Sweep) error) error {
	f, _, err := r.openJournal()
	if err != nil || f == nil {
		return r.damaged(err)
	}
	defer f.Close()
	return r.sweepsOf(f, forever, forever, each)
}

// sweepsOf calls the callback each with the sweeps of a journal, as readJournal does. It does nothing if the journal is nil.
func (r *Reader) sweepsOf(journal *os.File, since, until time.Time, each func(*Sweep) error) error {
	if journal == nil {
		return nil
	}
	_, damage, err := readJournal(journal, since, until, each)
	r.Damage = append(r.Damage, damage...)
	return r.damaged(err)
}

// openJournal opens the journal, and returns the time of its first sweep; nil: there is none.
func (r *Reader) openJournal() (f *os.File, first time.Time, err error) {
	f, size, err := open(journalPath(r.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, first, nil
	}
	if err != nil {
		return nil, first, err
	}
	first, meta, err := firstSweep(f, size)
	if id := strings.TrimPrefix(filepath.Base(r.dir), "cluster="); err == nil && meta != (Meta{}) && meta.SystemID != id {
		err = fmt.Errorf("%w: %s is of another server, with the system identifier %q", ErrFile, journalPath(r.dir), meta.SystemID)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, ErrJournal) && !errors.Is(err, errBegun) {
			err = fmt.Errorf("%s: %w", journalPath(r.dir), err)
		}
		return nil, first, err
	}
	return f, first, nil
}

// has reports whether a journal was already converted into a part of the hour. The journal still exists if a worker was killed
// before it could remove it, or is about to remove it. An error means that the journal cannot be read.
func (h *closedHour) has(journal *os.File) (bool, error) {
	st, err := journal.Stat() // now, since the journal of a closed hour does not grow any more
	if err != nil {
		return false, fmt.Errorf("journal: %w", err)
	}
	for _, path := range h.files("sweeps") {
		if same, err := hasSweeps(path, journal, st.Size()); err == nil && same {
			return true, nil
		}
	}
	return false, nil
}

// hasSweeps reports whether the file at path has the sweeps of a journal. The file may lack sweeps that cannot be decoded.
func hasSweeps(path string, journal io.ReaderAt, size int64) (bool, error) {
	f, err := openFrames(journal, size)
	if err != nil {
		return false, err
	}
	defer f.close()
	list, err := f.list()
	if err != nil {
		return false, err
	}
	err = readTable(context.Background(), path, -1<<63, 1<<63-1, func(closed []SweepInfo) error {
		for i := range closed {
			for len(list) > 0 && list[0].at != closed[i].Time && f.refuses(list[0]) {
				list = list[1:]
			}
			if len(list) == 0 || list[0].at != closed[i].Time {
				return errStop
			}
			list = list[1:]
		}
		return nil
	})
	for err == nil && len(list) > 0 && f.refuses(list[0]) {
		list = list[1:]
	}
	return len(list) == 0, err
}

// refuses reports whether a record cannot be decoded.
func (f *frames) refuses(s sweepFrame) bool {
	f.at = s.offset
	at, err := f.next()
	if err == nil {
		_, err = f.sweep(at)
	}
	return errors.Is(err, errRefused)
}

// Sweeps calls each with the sweeps of a span, in the order of the hours.
func (r *Reader) Sweeps(ctx context.Context, since, until time.Time, each func(SweepInfo) error) error {
	found, err := r.find(since, until)
	if err != nil {
		return err
	}
	defer found.close()
	for i := range found.hours {
		if err := r.closedSweeps(ctx, &found.hours[i], since.UnixMicro(), until.UnixMicro(), each); err != nil {
			return err
		}
	}
	return r.sweepsOf(found.journal, since, until, func(s *Sweep) error {
		if s.Time.Before(since) || !s.Time.Before(until) {
			return nil
		}
		return each(infoOf(s))
	})
}

// closedSweeps calls the callback each for every sweep that a closed hour has within a span.
func (r *Reader) closedSweeps(ctx context.Context, h *closedHour, since, until int64, each func(SweepInfo) error) error {
	for _, path := range h.files("sweeps") {
		impossible, found := 0, 0
		err := readTable(ctx, path, since, until, func(list []SweepInfo) error {
			for _, s := range list {
				if s.Time < since || s.Time >= until {
					continue
				}
				if !s.possible() {
					impossible++
					continue
				}
				if found++; found > maxFrames {
					return fmt.Errorf("%w: %s: it has more sweeps than an hour can have", ErrFile, path)
				}
				if len(s.Note) > maxNote+len(more) {
					s.Note = strings.ToValidUTF8(s.Note[:maxNote], "") + more
				}
				if err := each(s); err != nil {
					return err
				}
			}
			return nil
		})
		if err := r.damaged(err); err != nil {
			return err
		}
		r.impossible(path, "sweep", impossible)
	}
	return nil
}

// impossible adds to r.Damage that n records of a file are not shown.
func (r *Reader) impossible(path, what string, n int) {
	if n > 0 {
		r.Damage = append(r.Damage, fmt.Errorf("%w: %s: %s with impossible times, durations or counts %s ignored", ErrFile, path,
			units.Count(n, what), units.Plural(n, "{is|are}")))
	}
}

// Stacks returns the stacks with these ids, by id. It reads the hours of a span, and omits stacks that they do not have.
func (r *Reader) Stacks(ctx context.Context, since, until time.Time, want map[int64]bool) (map[int64]Stack, error) {
	stacks := map[int64]Stack{}
	keep := func(k *Stack) {
		if want[k.ID] {
			stacks[k.ID] = *k
		}
	}
	found, err := r.find(since, until)
	if err != nil {
		return nil, err
	}
	defer found.close()
	for i := range found.hours {
		for _, path := range found.hours[i].files("stacks") {
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
	err = r.sweepsOf(found.journal, since, until, func(s *Sweep) error {
		for i := range s.Stacks {
			keep(&s.Stacks[i])
		}
		return nil
	})
	return stacks, err
}

// Meta returns the description of the server and the recorder in the newest file. It returns ErrNoHistory if no file has a
// description.
func (r *Reader) Meta() (Meta, error) {
	var m Meta
	f, _, err := open(journalPath(r.dir))
	if err == nil {
		defer f.Close()
		m, _, err = readJournal(f, forever, forever, func(*Sweep) error { return errStop })
		if (err == nil || errors.Is(err, errStop)) && m != (Meta{}) {
			return m, nil
		}
	}
	list := closedHours(r.dir, "")
	for i := len(list) - 1; i >= 0; i-- {
		for _, path := range list[i].files("sweeps") {
			if m, err := metaOf(path); err == nil {
				return m, nil
			}
		}
	}
	return m, fmt.Errorf("%w in %s", ErrNoHistory, r.dir)
}

func metaOf(path string) (m Meta, err error) {
	p, err := openParquet(path)
	if err != nil {
		return m, err
	}
	defer p.close()
	if err := json.Unmarshal([]byte(p.lookup("pg_stat_backtrace.server")), &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return m, nil
}

// Span returns the begin of the first closed hour and the end of the last one. Both are zero if no hour is closed.
func (r *Reader) Span() (first, last time.Time) {
	for _, h := range closedHours(r.dir, "") {
		if first.IsZero() {
			first = h.from
		}
		last = h.from.Add(time.Hour)
	}
	return first, last
}
