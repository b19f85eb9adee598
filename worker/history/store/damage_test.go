package store_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"pg_stat_backtrace/worker/history/store"
)

// A frameOf is a record of a journal as the tests see it: its place, and the time and number of rows of its sweep.
type frameOf struct {
	begin, end int
	at         int64
	sums       bool
}

// records returns the records of an undamaged journal, the one with the Meta first.
func records(t *testing.T, journal []byte) (list []frameOf) {
	t.Helper()
	for at := 8; at < len(journal); {
		n := int(binary.LittleEndian.Uint32(journal[at:]))
		when := binary.LittleEndian.Uint64(journal[at+8:])
		list = append(list, frameOf{at, at + 8 + n, int64(when &^ (1 << 63)), when>>63 != 0})
		at += 8 + n
	}
	return list
}

// forged returns a record with a right checksum.
func forged(t *testing.T, at int64, text string) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	body := z.EncodeAll([]byte(text), binary.LittleEndian.AppendUint64(nil, uint64(at)))
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	return append(head, body...)
}

// A journalTest has the journal of the current hour with some sweeps, of which each has one row.
type journalTest struct {
	t     *testing.T
	dir   string
	path  string
	from  time.Time
	whole []byte
	list  []frameOf // of whole
}

func newJournalTest(t *testing.T, sweeps int) *journalTest {
	t.Helper()
	j := &journalTest{t: t, dir: filepath.Join(t.TempDir(), "state"), from: time.Now().UTC().Truncate(time.Hour)}
	w := open(t, j.dir)
	for i := range sweeps {
		if err := w.Append(small(j.from.Add(time.Duration(i) * 20 * time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	j.path = filepath.Join(j.dir, "cluster="+meta.SystemID, "journal")
	var err error
	if j.whole, err = os.ReadFile(j.path); err != nil {
		t.Fatal(err)
	}
	j.list = records(t, j.whole)
	return j
}

func small(at time.Time) *store.Sweep {
	return &store.Sweep{
		Time: at, Period: time.Second, Rows: []store.Row{{Time: at.UnixMicro(), PID: 1, Query: "select 1", QueryID: 7}},
		Stacks: []store.Stack{{ID: at.UnixMicro(), Frames: []string{"f"}}},
	}
}

// put replaces the journal.
func (j *journalTest) put(b []byte) {
	j.t.Helper()
	if err := os.WriteFile(j.path, b, 0o600); err != nil {
		j.t.Fatal(err)
	}
}

// untouched returns the times of the sweeps in list whose bytes are outside of the range from lo to hi.
func untouched(list []frameOf, lo, hi int) (times []int64) {
	for _, r := range list[1:] {
		if !r.sums && (r.end <= lo || r.begin >= hi) {
			times = append(times, r.at)
		}
	}
	return times
}

// read returns the times of the sweeps that a reader finds, and the lines about damage. It compares all ways to read the journal. A
// follower reads no closed hour: its sweeps are not compared if the name has a comma.
func (j *journalTest) read(name string) (times []int64, damage []string) {
	j.t.Helper()
	r, err := store.OpenReader(j.dir, meta.SystemID)
	if err != nil {
		j.t.Fatal(err)
	}
	summary, err := store.ReadSpan(j.t.Context(), r, j.from, j.from.Add(time.Hour), func(s *store.SpanSweep, _ *store.Gap) error {
		times = append(times, s.Time.UnixMicro())
		if len(s.Rows) != 1 {
			j.t.Errorf("%s: %d rows", name, len(s.Rows))
		}
		return nil
	})
	if err != nil {
		j.t.Fatalf("%s: %v", name, err)
	}
	var followed []int64
	f := r.Follow(j.from.Add(-time.Second))
	defer f.Close()
	if _, err := f.Next(time.Hour, func(s *store.Sweep) { followed = append(followed, s.Time.UnixMicro()) }); err == nil {
		if !slices.Equal(followed, times) && !strings.Contains(name, ",") {
			j.t.Errorf("%s: followed %v, read %v", name, followed, times)
		}
	} else if len(times) > 0 {
		j.t.Errorf("%s: follow: %v", name, err)
	}
	samples := int64(0)
	err = r.Sums(j.t.Context(), store.SumOptions{Since: j.from, Until: j.from.Add(time.Hour)}, func(s *store.Sum) error {
		samples += s.Samples
		return nil
	})
	if err != nil || samples < int64(len(times)) || samples > int64(len(j.list)) {
		j.t.Errorf("%s: sums of %d samples, and %d sweeps, %v", name, samples, len(times), err)
	}
	return times, summary.Damage
}

// continued lets a worker continue the journal with a sweep, and then close the hour. It verifies that the sweeps with the times in
// want, and the new one, are read in both states.
func (j *journalTest) continued(name string, want []int64) {
	j.t.Helper()
	added := j.from.Add(50 * time.Minute)
	w := open(j.t, j.dir)
	if err := w.Append(small(added)); err != nil {
		j.t.Fatalf("%s: %v", name, err)
	}
	if err := w.Close(); err != nil {
		j.t.Fatal(err)
	}
	want = append(slices.Clone(want), added.UnixMicro())
	if got, _ := j.read(name + ", continued"); !slices.Equal(got, want) {
		j.t.Errorf("%s: a worker has continued the journal: %v, not %v", name, got, want)
	}
	w, err := store.Open(store.Options{Dir: j.dir, Meta: meta, MinFree: 1, CloseJournal: true})
	if err != nil {
		j.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		j.t.Fatal(err)
	}
	got, damage := j.read(name + ", closed")
	if !slices.Equal(got, want) || len(damage) > 0 {
		j.t.Errorf("%s: the hour is closed: %v, not %v, %v", name, got, want, damage)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(j.path), "date=*"))
	for _, l := range left {
		os.RemoveAll(l)
	}
}

// TestFlippedBit flips a bit of each byte of a journal. All sweeps whose records have no flipped bit are read, and the damage is
// reported, unless the record with the flipped bit looks like a torn record at the end.
func TestFlippedBit(t *testing.T) {
	t.Parallel()
	j := newJournalTest(t, 8)
	for at := range j.whole {
		b := slices.Clone(j.whole)
		b[at] ^= byte(1 << (at % 8))
		j.put(b)
		name := fmt.Sprintf("byte %d of %d", at, len(b))
		got, damage := j.read(name)
		if at == 7 { // the version: the file may be of a later one
			if len(got) > 0 || len(damage) == 0 {
				t.Errorf("%s: %d sweeps, %v", name, len(got), damage)
			}
			continue
		}
		want := untouched(j.list, at, at+1)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, not %v, %v", name, got, want, damage)
		}
		last := j.list[len(j.list)-1]
		if len(damage) == 0 && (at < last.begin || at >= last.begin+4) {
			t.Errorf("%s: no damage is reported", name)
		}
		for _, line := range damage {
			if !strings.Contains(line, j.path+": damaged at byte ") {
				t.Errorf("%s: %s", name, line)
			}
		}
		if at%71 == 0 {
			j.continued(name, want)
		}
	}
}

// TestCutAnywhere cuts a journal at each length, as a killed worker may leave it. All whole records are read, and nothing is reported.
func TestCutAnywhere(t *testing.T) {
	t.Parallel()
	j := newJournalTest(t, 5)
	for n := range j.whole {
		j.put(j.whole[:n])
		name := fmt.Sprintf("%d bytes of %d", n, len(j.whole))
		got, damage := j.read(name)
		if want := untouched(j.list, n, len(j.whole)); !slices.Equal(got, want) || len(damage) > 0 {
			t.Errorf("%s: %v, not %v, %v", name, got, want, damage)
		} else if n%83 == 0 && len(want) > 0 {
			j.continued(name, want)
		}
	}
}

// TestZerosAndCopies has journals with zeros, as after a power failure, other bytes, and copied records.
func TestZerosAndCopies(t *testing.T) {
	t.Parallel()
	j := newJournalTest(t, 8)
	random := rand.New(rand.NewPCG(41, 42))
	for i := range 60 {
		lo := 8 + random.IntN(len(j.whole)-8)
		hi := min(len(j.whole), lo+1+random.IntN(500))
		middle := make([]byte, hi-lo)
		kind := "zeros"
		if i%2 == 0 {
			kind = "random bytes"
			for k := range middle {
				middle[k] = byte(random.UintN(256))
			}
		}
		j.put(slices.Concat(j.whole[:lo], middle, j.whole[hi:]))
		name := fmt.Sprintf("%s from %d to %d of %d", kind, lo, hi, len(j.whole))
		got, _ := j.read(name)
		want := untouched(j.list, lo, hi)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, not %v", name, got, want)
		} else if i%10 == 0 && len(want) > 0 {
			j.continued(name, want)
		}
	}
	all := untouched(j.list, 0, 0)
	for i, r := range j.list[1:] {
		copied := j.whole[r.begin:r.end]
		for name, b := range map[string][]byte{
			"doubled": slices.Concat(j.whole[:r.end], copied, j.whole[r.end:]), "copied to the end": slices.Concat(j.whole, copied),
		} {
			j.put(b)
			name = fmt.Sprintf("record %d %s", i, name)
			got, damage := j.read(name)
			if !slices.Equal(got, all) || len(damage) == 0 != r.sums {
				t.Errorf("%s: %v, not %v, %v", name, got, all, damage)
			} else if i == 2 {
				j.continued(name, all)
			}
		}
	}
}

// TestDamageWhileFollowed: a follower skips damaged bytes too, and waits for the rest of a torn record.
func TestDamageWhileFollowed(t *testing.T) {
	t.Parallel()
	j := newJournalTest(t, 6)
	r, err := store.OpenReader(j.dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	f := r.Follow(j.from.Add(-time.Second))
	defer f.Close()
	broken := slices.Clone(j.whole)
	broken[j.list[3].begin+20] ^= 1
	want := untouched(j.list, j.list[3].begin, j.list[3].end)
	var got []int64
	for n := j.list[1].begin; n <= len(broken); n++ {
		file, err := os.OpenFile(j.path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(broken[:n], 0); err != nil {
			t.Fatal(err)
		}
		if err := file.Truncate(int64(n)); err != nil {
			t.Fatal(err)
		}
		file.Close()
		if _, err := f.Next(time.Hour, func(s *store.Sweep) { got = append(got, s.Time.UnixMicro()) }); err != nil {
			t.Fatal(n, err)
		}
	}
	if !slices.Equal(got, want) || len(f.Damage()) == 0 {
		t.Errorf("%v, not %v, %v", got, want, f.Damage())
	}
}

// TestForgedJournal has records with a right checksum that a recorder does not write. They take little memory and time, are
// reported, and do not hide the others.
func TestForgedJournal(t *testing.T) {
	j := newJournalTest(t, 6)
	all := untouched(j.list, 0, 0)
	at := j.list[2].at + 1 // between the sweeps before and behind
	wait := func(key string, value int64) string {
		return fmt.Sprintf(`{"period":1000000000,"rows":[{"pid":1,%q:%d}]}`, key, value)
	}
	magics := bytes.Repeat(append(binary.LittleEndian.AppendUint32(nil, 1<<20), "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x28\xb5\x2f\xfd"...), 200_000)
	for name, c := range map[string]struct {
		record []byte
		want   string
		shown  bool // the sweep is shown, without its row
	}{
		"empty rows":         {forged(t, at, `{"rows":[`+strings.Repeat(`{},`, 7<<20)+`{}]}`), "more elements than a sweep", false},
		"null rows":          {forged(t, at, `{"rows":[`+strings.Repeat(`null,`, 4<<20)+`null]}`), "more elements than a sweep", false},
		"blockers":           {forged(t, at, `{"rows":[{"by":[`+strings.Repeat(`{},`, 7<<20)+`{}]}]}`), "more elements than a sweep", false},
		"frames":             {forged(t, at, `{"stacks":[{"frames":[`+strings.Repeat(`"",`, 7<<20)+`""]}]}`), "more elements than a sweep", false},
		"deep":               {forged(t, at, strings.Repeat(`[`, 5000)+strings.Repeat(`]`, 5000)), "more elements than a sweep", false},
		"large":              {forged(t, at, strings.Repeat(` `, 65<<20)+`{}`), "decompressed size exceeds", false},
		"no JSON":            {forged(t, at, `{"rows":`), "cannot be used", false},
		"negative period":    {forged(t, at, `{"period":-1}`), "impossible duration", false},
		"long period":        {forged(t, at, fmt.Sprintf(`{"period":%d}`, int64(math.MaxInt64))), "impossible duration", false},
		"negative delay":     {forged(t, at, `{"delay":-5}`), "impossible duration", false},
		"negative loss":      {forged(t, at, fmt.Sprintf(`{"lost":%d}`, int64(math.MinInt64))), "impossible duration", false},
		"year 10000":         {forged(t, 253402300800000000, `{}`), "impossible time", false},
		"far time":           {forged(t, math.MaxInt64, `{}`), "impossible time", false},
		"start of a session": {forged(t, at, wait("start", math.MinInt64)), "1 row with an impossible time is ignored", true},
		"transaction":        {forged(t, at, wait("xact", math.MaxInt64)), "1 row with an impossible time is ignored", true},
		"query":              {forged(t, at, wait("query", -1)), "1 row with an impossible time is ignored", true},
		"state":              {forged(t, at, wait("since", 253402300800000000)), "1 row with an impossible time is ignored", true},
		"wait":               {forged(t, at, wait("wstart", -1)), "1 row with an impossible time is ignored", true},
		"heads":              {magics, "bytes are skipped", false},
	} {
		j.put(slices.Concat(j.whole[:j.list[3].begin], c.record, j.whole[j.list[3].begin:]))
		r, err := store.OpenReader(j.dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var times []int64
		summary, err := store.ReadSpan(t.Context(), r, j.from, j.from.Add(time.Hour), func(s *store.SpanSweep, _ *store.Gap) error {
			if len(s.Rows) > 0 {
				times = append(times, s.Time.UnixMicro())
			}
			if _, err := json.Marshal(s); err != nil || s.Period < 0 || s.Delay < 0 || s.Lost < 0 {
				t.Errorf("%s: %v, %+v", name, err, s)
			}
			return nil
		})
		runtime.ReadMemStats(&after)
		want := all
		if name == "heads" { // the search for good records ends
			want = times[:min(len(times), 2)]
			if len(times) < 2 {
				t.Errorf("%s: %v", name, times)
			}
		}
		if err != nil || len(summary.Damage) == 0 || !strings.Contains(strings.Join(summary.Damage, "\n"), c.want) || !slices.Equal(times[:len(want)], want) {
			t.Errorf("%s: %v, %q, not %q; %v, not %v", name, err, summary.Damage, c.want, times, want)
		}
		found := summary.Sweeps
		if c.shown {
			found--
		}
		if found > len(all) {
			t.Errorf("%s: %d sweeps, not %d", name, summary.Sweeps, len(all))
		}
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 700 {
			t.Errorf("%s: %d MB of memory were used", name, used)
		}
		samples := int64(0)
		err = r.Sums(t.Context(), store.SumOptions{Since: j.from, Until: j.from.Add(time.Hour)}, func(s *store.Sum) error {
			samples += s.Samples
			return nil
		})
		if err != nil || samples < int64(len(want)) || samples > int64(len(all)) {
			t.Errorf("%s: %d samples, %v", name, samples, err)
		}
		f := r.Follow(j.from.Add(-time.Second))
		n := 0
		if _, err := f.Next(time.Hour, func(s *store.Sweep) { n += len(s.Rows) }); err != nil || n < len(want) || len(f.Damage()) == 0 {
			t.Errorf("%s: followed %d rows, %v, %v", name, n, err, f.Damage())
		}
		f.Close()
	}
}

// TestNoteOfDamage has a damaged journal that a worker continues, and then closes while it records. The next sweep has a note each time,
// beside a note that a sweep was to have before.
func TestNoteOfDamage(t *testing.T) {
	t.Parallel()
	j := newJournalTest(t, 8)
	b := slices.Clone(j.whole)
	b[records(t, b)[4].begin+20] ^= 1
	j.put(b)
	var notes store.Notes
	notes.Add("earlier")
	o := store.Options{Dir: j.dir, Meta: meta, MinFree: 1, Notes: &notes}
	w, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Close() // without a sweep
	if w, err = store.Open(o); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i, want := range []string{"1 part of the hour's journal is", "1 part of the hour before was"} {
		s := small(j.from.Add(50*time.Minute + time.Duration(i)*time.Hour))
		if err := w.Append(s); err != nil || !strings.HasPrefix(s.Note, "earlier; "+want+" damaged") || strings.Count(s.Note, " part of ") != 1 {
			t.Errorf("%v, note %q, want %q", err, s.Note, want)
		}
		notes.Add("earlier")
	}
}

// TestUnreadableJournalPruned has a journal that is not one, which a worker keeps under another name. The file counts against the size
// limit and the age, so that it goes like a closed hour.
func TestUnreadableJournalPruned(t *testing.T) {
	t.Parallel()
	j := newJournalTest(t, 1)
	for i, o := range []store.Options{{Keep: 2 * time.Hour}, {Size: 1 << 20}} {
		j.put(bytes.Repeat([]byte("x"), 2<<20))
		o.Dir, o.Meta, o.MinFree = j.dir, meta, 1
		aside := func() []string {
			list, err := filepath.Glob(filepath.Join(filepath.Dir(j.path), "journal.unreadable-*"))
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		w, err := store.Open(o)
		if err != nil || len(aside()) != 1 {
			t.Fatalf("%d: %v, %v", i, err, aside())
		}
		if i == 0 {
			if err := w.Append(small(j.from)); err != nil || len(aside()) != 1 {
				t.Errorf("%v, %v", err, aside())
			}
			old := j.from.Add(-4 * time.Hour)
			if err := os.Chtimes(aside()[0], old, old); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Append(small(j.from.Add(2 * time.Minute))); err != nil || len(aside()) != 0 {
			t.Errorf("%d: %v, %v", i, err, aside())
		}
		w.Close()
	}
}

// forgedHour returns the folder of a closed hour with files of an honest recorder, and the begin of the hour.
func forgedHour(t *testing.T) (dir, hour string, from time.Time) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	from = time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w := open(t, dir)
	for i := range 2 {
		if err := w.Append(small(from.Add(time.Duration(i) * time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28/hour=00"), from
}

// TestForgedTimes has a closed hour whose records have impossible times, durations and counts. They are reported, and the other
// records of the files are read.
func TestForgedTimes(t *testing.T) {
	t.Parallel()
	dir, hour, from := forgedHour(t)
	at, far := from.UnixMicro(), int64(253402300800000000) // the year 10000
	rows := []store.Row{{Time: at, PID: 1}, {Time: at, Start: -1}, {Time: at, XactStart: far}, {Time: at, QueryStart: math.MinInt64},
		{Time: at, StateStart: math.MaxInt64}, {Time: at, WaitStart: far}}
	sweeps := []store.SweepInfo{{Time: at, Period: 1, Rows: 1}}
	for i, s := range []store.SweepInfo{{Period: -1}, {Period: math.NaN()}, {Period: math.Inf(1)}, {Delay: -1}, {Delay: 1e300}, {Lost: -1}, {Rows: -1}} {
		s.Time = at + int64(i) + 1
		sweeps = append(sweeps, s)
	}
	sums := []store.Sum{{Time: at, Seconds: 3600, Samples: 5, Weight: 5}}
	for _, s := range []store.Sum{{Samples: -1}, {Weight: -1}, {Weight: math.NaN()}, {Weight: math.Inf(1)}, {TopCount: -1}} {
		s.Time, s.Seconds = at, 3600
		sums = append(sums, s)
	}
	for name, file := range map[string][]byte{"rows": written(t, rows), "sweeps": written(t, sweeps), "sums": written(t, sums)} {
		if err := os.WriteFile(filepath.Join(hour, name+".parquet"), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	summary, err := store.ReadSpan(t.Context(), r, from, from.Add(time.Hour), func(s *store.SpanSweep, _ *store.Gap) error {
		found += len(s.Rows)
		if _, err := json.Marshal(s); err != nil || len(s.Rows) != 1 || s.Rows[0].PID != 1 {
			t.Errorf("%v, %+v", err, s)
		}
		return nil
	})
	if _, failed := json.Marshal(summary); err != nil || failed != nil || found != 1 || summary.Sweeps != 1 || summary.Seconds != 1 {
		t.Errorf("%v, %v, %d rows, %+v", err, failed, found, summary)
	}
	samples := int64(0)
	err = r.Sums(t.Context(), store.SumOptions{Since: from, Until: from.Add(time.Hour)}, func(s *store.Sum) error {
		samples += s.Samples
		return nil
	})
	if err != nil || samples != 5 {
		t.Errorf("%d samples, %v", samples, err)
	}
	text := fmt.Sprint(r.Damage)
	for _, want := range []string{"5 rows with", "7 sweeps with", "5 sums with"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}

// TestManyRowsAtATime has a group with more rows than Rows puts in order at a time. It reads the hour in parts, in order. Rows that all
// have the same time are refused.
func TestManyRowsAtATime(t *testing.T) {
	dir, hour, from := forgedHour(t)
	const n = 6000
	list := make([]store.Row, n)
	for i := range list { // ordered by process, as in a file of the recorder
		list[i] = store.Row{PID: int32(i / 300), Time: from.Add(time.Duration(i%300) * time.Second).UnixMicro()}
	}
	put := func() {
		if err := os.WriteFile(filepath.Join(hour, "rows.parquet"), written(t, list), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (found int, damage []error) {
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		r.SetTogether(n - 1000)
		last := store.Row{PID: -1}
		err = r.Rows(t.Context(), from, from.Add(time.Hour), func(row *store.Row) error {
			if row.Time < last.Time || row.Time == last.Time && row.PID <= last.PID && found < n-1 && len(list) > 0 && list[0].Time != list[n-1].Time {
				t.Fatalf("row %d: process %d at %d after process %d at %d", found, row.PID, row.Time, last.PID, last.Time)
			}
			found, last = found+1, *row
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return found, r.Damage
	}
	put()
	if found, damage := read(); found != n || len(damage) > 0 {
		t.Errorf("%d rows of %d, %v", found, n, damage)
	}
	for i := range list {
		list[i].Time = from.UnixMicro()
	}
	put()
	if found, damage := read(); found != 0 || len(damage) != 1 {
		t.Errorf("%d rows at one time, %v", found, damage)
	}
}
