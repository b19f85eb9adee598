package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/report/units"
)

// groupSpan is the span of time whose rows form one row group. Within a group, rows are sorted by process, since similar rows
// compress better.
const (
	groupSpan = 10 * time.Minute
	groupRows = 200_000 // a group with more rows ends earlier
)

// sumKeys bounds the Sums of one minute or hour. Beyond it, samples with new properties are counted without query and
// application.
const sumKeys = 20_000

// closeHour converts the journal into a closed hour, and removes the journal. If it is interrupted, the next call begins again. A
// journal that cannot be read is renamed (see setAside), so that it does not prevent the recording of other hours.
func (w *Writer) closeHour(now time.Time) error {
	path := journalPath(w.dir)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	defer file.Close()
	damage, err := convert(w.dir, file, w.o.Meta)
	if err != nil {
		var number unix.Errno
		if !errors.As(err, &number) {
			return w.setAside(now, err)
		}
		return fmt.Errorf("history: close an hour: %w", err)
	}
	if len(damage) > 0 {
		text := units.Plural(len(damage), "%d {part|parts} of the hour before {was|were} damaged, and the others are kept: ")
		w.o.Notes.add(text + damage[0].Error())
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return syncDir(w.dir)
}

// convert writes the Parquet files of a journal's hour. It writes nothing if the journal has no sweep. The result damage has the
// places of damaged and refused records. own is the Meta of this worker, for a journal whose Meta is damaged.
func convert(dir string, file *os.File, own Meta) (damage []error, err error) {
	var first time.Time
	meta, damage, err := readJournal(file, time.Time{}, forever, func(s *Sweep) error {
		first = s.Time
		return errStop
	})
	if !errors.Is(err, errStop) {
		return damage, err // nil if the journal has no sweep
	}
	hour := hourDir(dir, first)
	before := closedHour{dir: hour}
	if err := before.read(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if closed, err := before.has(file); closed || err != nil {
		return nil, err
	}
	if err := os.MkdirAll(hour, 0o700); err != nil {
		return nil, err
	}
	if meta == (Meta{}) {
		meta = own
	}
	part := ""
	for n := 2; ; n++ { // the hour already has files if the clock was set back or Meta has changed: add a part
		if _, err := os.Lstat(filepath.Join(hour, "rows"+part+".parquet")); errors.Is(err, fs.ErrNotExist) {
			break
		}
		part = "-" + strconv.Itoa(n)
	}
	c, err := newConversion(hour, part, meta)
	if err != nil {
		return nil, err
	}
	if _, damage, err = readJournal(file, time.Time{}, forever, c.add); err == nil {
		err = c.finish()
	}
	if err != nil {
		c.discard()
		return nil, err
	}
	return damage, errors.Join(syncDir(hour), syncDir(filepath.Dir(hour)), syncDir(dir))
}

var (
	errStop = errors.New("enough")
	forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
)

func hourDir(dir string, at time.Time) string {
	at = at.UTC()
	return filepath.Join(dir, "date="+at.Format(time.DateOnly), "hour="+at.Format("15"))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// A table is a Parquet file that is being written under a temporary name.
type table[T any] struct {
	file *os.File
	w    *parquet.GenericWriter[T]
	path string
}

func newTable[T any](path string, meta Meta) (*table[T], error) {
	file, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	about, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	w := parquet.NewGenericWriter[T](file,
		parquet.Compression(&zstd.Codec{Level: zstd.DefaultLevel, Concurrency: 1}),
		parquet.KeyValueMetadata("pg_stat_backtrace.format_version", strconv.Itoa(Version)),
		parquet.KeyValueMetadata("pg_stat_backtrace.server", string(about)),
		parquet.KeyValueMetadata("system_identifier", meta.SystemID),
		parquet.KeyValueMetadata("timeline", strconv.FormatUint(uint64(meta.Timeline), 10)),
		parquet.KeyValueMetadata("server_version", meta.ServerVersion),
		parquet.CreatedBy("pg_stat_backtrace", strconv.Itoa(Version), ""),
		parquet.DataPageStatistics(true))
	return &table[T]{file: file, w: w, path: path}, nil
}

func (t *table[T]) finish() error {
	if err := t.w.Close(); err != nil {
		return err
	}
	if err := t.file.Sync(); err != nil {
		return err
	}
	if err := t.file.Close(); err != nil {
		return err
	}
	return os.Rename(t.path+".tmp", t.path)
}

func (t *table[T]) discard() {
	t.file.Close()
	os.Remove(t.path + ".tmp")
}

// A conversion writes the four files of an hour from the sweeps of its journal.
type conversion struct {
	rows    *table[Row]
	stacks  *table[Stack]
	sums    *table[Sum]
	sweeps  *table[SweepInfo]
	held    []Row
	from    int64 // time of the first row in held, which collects the rows of a row group
	intern  shared
	minute  *adder
	hour    *adder
	texts   map[int64]string
	written map[int64]bool // ids of the stacks that the file of stacks has already
}

func newConversion(hour, part string, meta Meta) (c *conversion, err error) {
	c = &conversion{intern: shared{}, hour: newAdder(3600), texts: map[int64]string{}, written: map[int64]bool{}}
	path := func(name string) string { return filepath.Join(hour, name+part+".parquet") }
	if c.rows, err = newTable[Row](path("rows"), meta); err != nil {
		return nil, err
	}
	if c.stacks, err = newTable[Stack](path("stacks"), meta); err != nil {
		c.rows.discard()
		return nil, err
	}
	if c.sums, err = newTable[Sum](path("sums"), meta); err != nil {
		c.rows.discard()
		c.stacks.discard()
		return nil, err
	}
	if c.sweeps, err = newTable[SweepInfo](path("sweeps"), meta); err != nil {
		c.rows.discard()
		c.stacks.discard()
		c.sums.discard()
		return nil, err
	}
	return c, nil
}

func (c *conversion) add(s *Sweep) error {
	for _, k := range s.Stacks {
		if c.written[k.ID] {
			continue
		}
		c.written[k.ID] = true
		if _, err := c.stacks.w.Write([]Stack{k}); err != nil {
			return err
		}
	}
	if _, err := c.sweeps.w.Write([]SweepInfo{infoOf(s)}); err != nil {
		return err
	}
	if len(s.Rows) == 0 {
		return nil
	}
	at := s.Time.UnixMicro()
	if len(c.held) > 0 && (at-c.from >= groupSpan.Microseconds() || at < c.from || len(c.held) > groupRows) {
		if err := c.flushRows(); err != nil {
			return err
		}
	}
	if len(c.held) == 0 {
		c.from = at
	}
	if c.minute == nil || c.minute.from != spanOf(at, 60) {
		if err := c.flushMinute(); err != nil {
			return err
		}
		c.minute = newAdder(60)
	}
	for i := range s.Rows {
		r := &s.Rows[i]
		c.intern.share(r)
		if r.Query != "" && r.QueryID != 0 {
			c.texts[r.QueryID] = r.Query
		}
		c.minute.add(r, s.Period)
		c.hour.add(r, s.Period)
	}
	c.held = append(c.held, s.Rows...)
	return nil
}

// shared replaces equal strings of a row group by one copy. Without this, a row group would take ten times the memory.
type shared map[string]string

// It returns the bytes of the texts that are new.
func (m shared) share(r *Row) (bytes int) {
	for _, p := range []*string{&r.Type, &r.Database, &r.User, &r.App, &r.Client, &r.State, &r.WaitType, &r.WaitEvent,
		&r.Query, &r.PhraseKey, &r.Phrase, &r.Plan, &r.Function, &r.Method} {
		if *p == "" {
			continue
		}
		if v, ok := m[*p]; ok {
			*p = v
		} else {
			m[*p] = *p
			bytes += len(*p)
		}
	}
	return bytes
}

func (c *conversion) flushRows() error {
	sort.SliceStable(c.held, func(i, j int) bool {
		a, b := c.held[i], c.held[j]
		return int(a.PID)-int(b.PID) < 0
	})
	if _, err := c.rows.w.Write(c.held); err != nil {
		return err
	}
	c.held = c.held[:0]
	clear(c.intern)
	return c.rows.w.Flush()
}

func (c *conversion) flushMinute() error {
	if c.minute == nil {
		return nil
	}
	_, err := c.sums.w.Write(c.minute.sums(nil))
	return err
}

func (c *conversion) finish() error {
	if err := c.flushMinute(); err != nil {
		return err
	}
	if err := c.sums.w.Flush(); err != nil { // the hour's sums are a row group of their own
		return err
	}
	if _, err := c.sums.w.Write(c.hour.sums(c.texts)); err != nil {
		return err
	}
	if len(c.held) > 0 {
		if err := c.flushRows(); err != nil {
			return err
		}
	}
	// The file of rows gets its name last, because convert regards an hour with this file as complete.
	if err := c.stacks.finish(); err != nil {
		return err
	}
	if err := c.sums.finish(); err != nil {
		return err
	}
	if err := c.sweeps.finish(); err != nil {
		return err
	}
	return c.rows.finish()
}

func (c *conversion) discard() {
	c.rows.discard()
	c.stacks.discard()
	c.sums.discard()
	c.sweeps.discard()
}
