package store

import (
	"math"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// TestJournalSums: sums of the hour in progress decode only the sweeps of the last minute, and count no sweep twice.
func TestJournalSums(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	w, err := Open(Options{Dir: dir, Meta: Meta{SystemID: "1"}, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	from := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	const sweeps = 6*10 + 5 // one each 10 s
	for i := range sweeps {
		s := &Sweep{Time: from.Add(time.Duration(i) * 10 * time.Second), Period: time.Second, Rows: []Row{{PID: 1, QueryID: 7, Query: "select ?", Stack: 9}}}
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
	}
	// damaged sums: one begins before its minute, one within a frame, and one counts sweeps that other sums count
	j := w.journal
	last := from.Add(10 * time.Minute).UnixMicro()
	for _, at := range []int64{0, j.size - 3, j.tally.from} {
		for range 2 {
			frame, err := newFrame(j.z, uint64(last)|sumsMark, encodeSums(at, []Sum{{Samples: 1000}}))
			if err != nil {
				t.Fatal(err)
			}
			if at == j.tally.from { // of another minute
				frame, err = newFrame(j.z, uint64(last+60e6)|sumsMark, encodeSums(at, []Sum{{Samples: 1000}}))
			}
			if err != nil || j.write(frame) != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(dir, "1")
	if err != nil {
		t.Fatal(err)
	}
	for _, span := range []struct {
		since, until   time.Time
		samples, alone int
	}{
		{from, from.Add(time.Hour), sweeps, 5},
		{from.Add(30 * time.Second), from.Add(2*time.Minute + 20*time.Second), 3 + 6 + 2, 5},
		{from.Add(10 * time.Minute), from.Add(time.Hour), 5, 5},
	} {
		samples, alone := 0, 0
		reader := &journalReader{lo: span.since.UnixMicro(), hi: span.until.UnixMicro(), enough: func(time.Time) bool { return false }}
		reader.each = func(s *Sum) error {
			samples += int(s.Samples)
			if s.Query != "select ?" || s.TopStack != 9 || s.TopCount != s.Samples || s.Weight != float64(s.Samples) {
				t.Errorf("%+v", s)
			}
			return nil
		}
		journal, _, err := r.openJournal()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.liveSums(t.Context(), journal, reader); err != nil || len(r.Damage) > 0 {
			t.Fatal(err, r.Damage)
		}
		journal.Close()
		for _, f := range reader.sweeps {
			if !f.counted && f.at >= reader.lo && f.at < reader.hi {
				alone++
			}
		}
		if samples != span.samples || alone != span.alone {
			t.Errorf("from %s to %s: %d samples, not %d; %d sweeps were decoded, not %d", span.since, span.until, samples, span.samples,
				alone, span.alone)
		}
	}
}

// FuzzDecodeSums: sums in a journal are as they were written, or an error.
func FuzzDecodeSums(f *testing.F) {
	f.Add(encodeSums(8, nil))
	f.Add(encodeSums(100, []Sum{{WaitType: "Lock", Query: "q", Samples: 3, TopCount: 2, QueryID: -5, Weight: 2.5, TopStack: 1}, {User: "u"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		from, list, err := decodeSums(b, 60e6)
		if err != nil {
			return
		}
		again, same, err := decodeSums(encodeSums(from, list), 60e6)
		for i := range list { // not equal to itself
			if math.IsNaN(list[i].Weight) {
				list[i].Weight, same[i].Weight = 0, 0
			}
		}
		if err != nil || again != from || !reflect.DeepEqual(list, same) {
			t.Errorf("%v, %d, %+v, not %d, %+v", err, again, same, from, list)
		}
	})
}
