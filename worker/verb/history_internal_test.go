package verb

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/serve/spool"
)

// TestSlowHistoryDelaysNoMemory: while requests for the recorder's files do not end, their roles may still read memory contexts.
func TestSlowHistoryDelaysNoMemory(t *testing.T) {
	t.Parallel()
	s := &Service{bounds: newBounds(0)}
	for _, req := range []spool.Request{{Caller: 16384}, {Caller: 16385}, {Caller: 10, Superuser: true}} {
		reads, err := s.reading(t.Context(), call{Request: req})
		if err != nil {
			t.Fatal(err)
		}
		defer reads()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.reading(ctx, call{Request: spool.Request{Caller: 16384}}); err == nil {
		t.Error("two reads of the recorder's files for one role")
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done, err := s.bounds.trees.Acquire(ctx, limits.Who{Role: 16384}, 1)
	if err != nil {
		t.Fatal("no memory contexts while the history is read: ", err)
	}
	done()
}

// TestHistoryGoesOn reads spans with sweeps that do not fit into one answer, as their notices say. It gets each session of each
// sweep, once, except texts of queries. The database cannot have all characters of the texts, so that they are escaped.
func TestHistoryGoesOn(t *testing.T) {
	t.Parallel()
	hour := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	const escaped = "a sweep whose texts are too long with escapes"
	for name, sweeps := range map[string][]struct{ rows, text int }{
		"a sweep with too many sessions first":  {{maxHistoryRows + 5, 0}, {3, 0}},
		"a sweep with too many sessions last":   {{3, 0}, {maxHistoryRows + 5, 0}},
		"sweeps that fit only alone":            {{maxHistoryRows, 0}, {maxHistoryRows, 0}},
		"a sweep with too long texts":           {{700, 16 << 10}, {2, 10}},
		escaped:                                 {{700, 3000}, {2, 10}},
		"a sweep with the largest size":         {{maxHistoryRows + 5, 400}, {1, 1}, {1, 1}},
		"sweeps without sessions, then a large": {{0, 0}, {0, 0}, {maxHistoryRows + 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, want, letter := filepath.Join(t.TempDir(), "state"), 0, "q"
			if name == escaped {
				letter = "ж"
			}
			w, err := store.Open(store.Options{Dir: dir, MinFree: 1, Meta: store.Meta{SystemID: "1"}})
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range sweeps {
				s := store.Sweep{Time: hour.Add(time.Duration(i) * time.Second), Period: time.Second}
				for pid := range c.rows {
					s.Rows = append(s.Rows, store.Row{PID: int32(c.rows - pid), Query: strings.Repeat(letter, c.text)})
				}
				if want += c.rows; w.Append(&s) != nil {
					t.Fatal("a sweep is lost")
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got := readOn(t, dir, hour, hour.Add(time.Duration(len(sweeps)-1)*time.Second+time.Microsecond))
			if len(got) != want {
				t.Errorf("%d different rows, want %d", len(got), want)
			}
		})
	}
}

var (
	goOn    = regexp.MustCompile(`continue with (\S+ \S+)`)
	leftOut = regexp.MustCompile(`(\d+) sessions? of (\S+ \S+) (?:is|are) left out, from PID (\d+) on`)
)

// readOn reads a span as the notices say, and returns the number of each row.
func readOn(t *testing.T, dir string, since, until time.Time) map[string]bool {
	t.Helper()
	got := map[string]bool{}
	at := func(text string) time.Time {
		t.Helper()
		v, err := time.Parse("2006-01-02 15:04:05.000000+00", text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	read := func(since, until time.Time, pids []int) string {
		t.Helper()
		r, err := store.OpenReader(dir, "1")
		if err != nil {
			t.Fatal(err)
		}
		rows, err := recordedRows(t.Context(), r, since, until, pids, "LATIN1")
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, row := range rows[1:] {
			if size += cellsSize(row, "LATIN1"); got[row[0]+" "+row[1]] {
				t.Fatal("twice:", row[0], row[1])
			}
			got[row[0]+" "+row[1]] = true
		}
		if len(rows) > maxHistoryRows+1 || size > 6<<20 {
			t.Errorf("%d rows of %d bytes", len(rows), size)
		}
		return rows[0][0]
	}
	for calls := 0; ; calls++ {
		notice := read(since, until, nil)
		if m := leftOut.FindStringSubmatch(notice); m != nil {
			n, _ := strconv.Atoi(m[1])
			first, _ := strconv.Atoi(m[3])
			pids := []int{}
			for pid := range n {
				pids = append(pids, first+pid)
			}
			for list := range slices.Chunk(pids, 1000) {
				if notice := read(at(m[2]), at(m[2]).Add(time.Microsecond), list); strings.Contains(notice, "left out, from") {
					t.Fatal(strconv.Itoa(len(list)), notice)
				}
			}
		}
		m := goOn.FindStringSubmatch(notice)
		if m == nil {
			return got
		}
		if next := at(m[1]); !next.After(since) || !next.Before(until) || calls > 10 {
			t.Fatalf("go on with %s after %s of %s", next, since, until)
		}
		since = at(m[1])
	}
}

// TestHistoryAges: a transaction that began in the future, as the clock was set back, has no age.
func TestHistoryAges(t *testing.T) {
	t.Parallel()
	const transaction, query = 14, 15
	at := time.Unix(1_800_000_000, 0)
	row := historyRow(&store.SpanSweep{Time: at}, &store.Row{XactStart: at.Add(time.Hour).UnixMicro(), QueryStart: at.Add(-time.Second).UnixMicro()})
	if row[transaction] != "" || row[query] != "1.000" {
		t.Errorf("%q and %q", row[transaction], row[query])
	}
}
