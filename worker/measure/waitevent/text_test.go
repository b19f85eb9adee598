package waitevent

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/pg/levels"
)

// named is a server that only names events.
func named(t *testing.T) *Server {
	t.Helper()
	names, err := levels.NewWaitNames(18)
	if err != nil {
		t.Fatal(err)
	}
	return &Server{Names: names}
}

// event returns the number of an event of PostgreSQL 18.
func event(t *testing.T, s *Server, class, name string) uint32 {
	t.Helper()
	for high := uint32(1); high < 16; high++ {
		for low := range uint32(300) {
			if c, n, known := s.Names.Name(high<<24 | low); known && c == class && n == name {
				return high<<24 | low
			}
		}
	}
	t.Fatalf("no event %s %s", class, name)
	return 0
}

func sample(t *testing.T, s *Server) *waits.Snapshot {
	t.Helper()
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	sleep := waits.Event{ID: event(t, s, "Timeout", "PgSleep"), Calls: 3, Total: 30 * time.Millisecond}
	sleep.Longest, sleep.Buckets[14] = 12*time.Millisecond, 3
	read := waits.Event{ID: event(t, s, "Client", "ClientRead"), Calls: 1, Total: time.Second, Longest: time.Second}
	read.Buckets[20] = 1
	unknown := waits.Event{ID: 0x01_00ffff, Calls: 2, Total: 5 * time.Microsecond, Longest: 3 * time.Microsecond}
	unknown.Buckets[2] = 2
	return &waits.Snapshot{
		At: at.Add(10 * time.Second), Since: at,
		Processes: []waits.Process{{PID: 7, Slot: 1, Events: []waits.Event{sleep, read}}, {PID: 8, Slot: 2}},
		Ended:     []waits.Event{sleep, unknown},
		Lost:      waits.Lost{Overflow: 4, Processes: 1},
	}
}

// TestText compares the table with its intended form, and expects a line for each kind of loss.
func TestText(t *testing.T) {
	s := named(t)
	info := waits.Info{
		Method: waits.Exact, Mechanism: "tracepoints", Counts: true, Reasons: []string{"fentry: refused"},
		Unreachable: []int{5},
	}
	report := s.NewReport(info, sample(t, s), func(int) string { return "title" }, nil)
	var b bytes.Buffer
	if err := report.Text(&b, true, 0); err != nil {
		t.Fatal(err)
	}
	want := `Method exact (tracepoints), 10.0 s. ` + Sees(info) + `
Not used: fentry: refused

TYPE     EVENT          CALLS     TOTAL   SHARE   AVERAGE   MAXIMUM  HISTOGRAM, 2.05 us to 1.07 s
Client   ClientRead         1       1 s    idle       1 s       1 s                    @
Timeout  PgSleep            6     60 ms 100.0 %     10 ms     12 ms              @
LWLock   #65535             2      5 us   0.0 %   2.50 us      3 us  @
SHARE leaves out idle waits: the type Activity, and ClientRead.
Missing: 4 waits of processes that waited for more than 64 events each.
Missing: the figures of 1 process that ended faster than it could be read.
Missing: the waits in which 1 process was at the start. The kernel did not return from reading their memory.
Events with a number in place of a name are unknown to this release, or an extension's.
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// TestLastRangeOfHistogram: the last range has no end.
func TestLastRangeOfHistogram(t *testing.T) {
	s, snapshot := named(t), &waits.Snapshot{Ended: []waits.Event{{ID: 0x01_000001, Calls: 1, Total: time.Hour}}}
	snapshot.Ended[0].Buckets[waits.Buckets-1] = 1
	report := s.NewReport(waits.Info{Counts: true}, snapshot, func(int) string { return "" }, nil)
	var b bytes.Buffer
	if err := report.Text(&b, true, 0); err != nil || !strings.Contains(b.String(), "  HISTOGRAM, from 18.3 min\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// TestSelect prints a report that includes idle waits in the shares, and then reports of only some types and events.
func TestSelect(t *testing.T) {
	s := named(t)
	text := func(r *Report) string {
		var b bytes.Buffer
		if err := r.Text(&b, true, 0); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	report := s.NewReport(waits.Info{Method: waits.Exact, Counts: true}, sample(t, s), func(int) string { return "" }, nil)
	report.Idle = true
	if got := text(&report); !strings.Contains(got, " 94.3 % ") || strings.Contains(got, "idle") {
		t.Errorf("with idle waits:\n%s", got)
	}
	report.Idle = false
	report.Select([]string{"timeout", "Client"}, []string{"pgsleep"})
	if len(report.Rows) != 1 || report.Rows[0].Name != "PgSleep" || len(report.Processes[0].Rows) != 1 ||
		strings.Contains(text(&report), "idle") {
		t.Errorf("%+v", report)
	}
}

// TestTextOfProcesses expects only the figures of the processes asked for.
func TestTextOfProcesses(t *testing.T) {
	s := named(t)
	report := s.NewReport(waits.Info{Method: waits.Blocked, Counts: true}, sample(t, s), func(int) string { return "" },
		[]int{7})
	if len(report.Processes) != 1 || len(report.Rows) != 2 || report.Rows[1].Calls != 3 {
		t.Errorf("%+v", report)
	}
}

// TestJSONOfSampled expects null for figures that the method does not know.
func TestJSONOfSampled(t *testing.T) {
	s := named(t)
	report := s.NewReport(waits.Info{Method: waits.Sampled}, sample(t, s), func(int) string { return "" }, nil)
	var b bytes.Buffer
	if err := report.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Method string           `json:"method"`
		Events []map[string]any `json:"events"`
	}
	if err := json.Unmarshal(b.Bytes(), &parsed); err != nil {
		t.Fatal(err)
	}
	e := parsed.Events[0]
	if parsed.Method != "sampled" || e["wait_event"] != "ClientRead" || e["calls"] != nil || e["total_time_ms"] != 1000.0 {
		t.Errorf("%s", b.String())
	}
}

// TestSessionReport adds up the records of two queries.
func TestSessionReport(t *testing.T) {
	s := named(t)
	sleep, read := event(t, s, "Timeout", "PgSleep"), event(t, s, "Client", "ClientRead")
	r := s.NewSessionReport()
	r.Add([]waits.Record{
		{Kind: waits.Wait, Event: read, Took: time.Second},
		{Kind: waits.QueryStart, Query: 5},
		{Kind: waits.Wait, Event: sleep, Took: 40 * time.Millisecond, Query: 5}, // its end is not seen
		{Kind: waits.QueryStart, Query: 5},
		{Kind: waits.Wait, Event: sleep, Took: 2 * time.Millisecond, Query: 5},
		{Kind: waits.QueryEnd, Took: 3 * time.Millisecond, Query: 5},
		{Kind: waits.QueryStart, Query: 1<<64 - 1},
		{Kind: waits.QueryEnd, Took: 50 * time.Millisecond, Query: 1<<64 - 1},
	})
	r.SetLost(2)
	r.SetTexts(map[int64]string{-1: "SELECT\n\t1\x1b", 7: "SELECT 7"})
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Query -1: 1 execution ended, 50 ms elapsed, 50 ms on average, 50 ms at most\n    SELECT 1?\n", "Query 5: 1 execution ended, 3 ms elapsed",
		"Not in SHARE: 1 execution, or a part of it, whose end was not seen",
		"Timeout PgSleep         2     42 ms  66.7 %     21 ms     40 ms",
		"(no wait seen)                 1 ms  33.3 %",
		"(no wait seen)               50 ms 100.0 %",
		"Client ClientRead         1       1 s", "Missing: 2 records",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Index(b.String(), "Query -1") > strings.Index(b.String(), "Query 5") {
		t.Error("the query with more time comes second")
	}
}

// TestManyQueriesOfSession adds up the queries after the first ones, so that the figures of a long trace stay small.
func TestManyQueriesOfSession(t *testing.T) {
	s := named(t)
	sleep := event(t, s, "Timeout", "PgSleep")
	r := s.NewSessionReport()
	for id := range uint64(maxQueries + 10) {
		r.Add([]waits.Record{
			{Kind: waits.QueryStart, Query: id + 1},
			{Kind: waits.Wait, Event: sleep, Took: time.Millisecond, Query: id + 1},
			{Kind: waits.QueryEnd, Took: 2 * time.Millisecond, Query: id + 1},
		})
	}
	r.Add([]waits.Record{{Kind: waits.QueryStart, Query: 5}, {Kind: waits.QueryEnd, Took: time.Minute, Query: 5}})
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Query 5: 2 executions ended, ",
		"Other queries, after the first 16384: 10 executions ended, 20 ms elapsed, 2 ms on average, 2 ms at most\n",
		"Timeout PgSleep        10     10 ms  50.0 %",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n...%s", want, b.String()[max(0, b.Len()-1000):])
		}
	}
	if len(r.queries) != maxQueries {
		t.Errorf("%d queries have figures of their own", len(r.queries))
	}
}

// TestSharesOfCountedExecutions expects shares that add up to 100 %, and a line for each execution that does not count.
func TestSharesOfCountedExecutions(t *testing.T) {
	s := named(t)
	sleep, read := event(t, s, "Timeout", "PgSleep"), event(t, s, "Client", "ClientRead")
	io := event(t, s, "IO", "WalSync")
	wait := func(event uint32, query uint64, took int) waits.Record {
		return waits.Record{Kind: waits.Wait, Event: event, Query: query, Took: time.Duration(took) * time.Millisecond}
	}
	began := time.Unix(1e9, 0)
	start := func(query uint64) waits.Record { return waits.Record{Kind: waits.QueryStart, Query: query, At: began} }
	end := func(query uint64, took int) waits.Record {
		return waits.Record{Kind: waits.QueryEnd, Query: query, Took: time.Duration(took) * time.Millisecond}
	}
	early := start(5) // as reported with the first wait that the programs see of a statement from before the trace
	early.At = began.Add(-10 * time.Minute)
	for name, test := range map[string]struct {
		records []waits.Record
		want    []string
	}{
		"waits when the trace begins": {
			[]waits.Record{wait(io, 0, 5000), early, wait(sleep, 5, 3), end(5, 605_000)},
			[]string{
				"Query 5: 0 executions ended\n    Not in SHARE: 1 execution whose start was not seen\n",
				"PgSleep         1      3 ms              3 ms      3 ms\nOutside",
			},
		},
		"begun before the trace": {
			[]waits.Record{wait(sleep, 5, 30), end(5, 100), start(5), wait(sleep, 5, 3), end(5, 4)},
			[]string{
				"Query 5: 1 execution ended, 4 ms elapsed", "Not in SHARE: 1 execution whose start was not seen",
				"2     33 ms  75.0 %", "(no wait seen)                 1 ms  25.0 %",
			},
		},
		"wait before the query id is known": {
			[]waits.Record{start(0), wait(io, 0, 1), wait(sleep, 5, 2), end(5, 4), wait(read, 0, 9)},
			[]string{
				"IO WalSync              1      1 ms  25.0 %",
				"ClientRead         1      9 ms 100.0 %",
			},
		},
		"two queries in one message": {
			[]waits.Record{
				start(5), wait(sleep, 5, 1), wait(sleep, 6, 2), end(6, 4), start(6), wait(sleep, 6, 5), end(6, 10),
			},
			[]string{
				"Query 6: 1 execution ended, 10 ms elapsed", "2      7 ms  50.0 %", "Query 5: 0 executions ended\n" +
					"    Not in SHARE: 1 execution in one message", "1      1 ms              1 ms",
			},
		},
		"runs at the end of the trace": {
			[]waits.Record{start(0), wait(io, 0, 1), wait(sleep, 5, 2)},
			[]string{
				"Query 5: 0 executions ended\n    Not in SHARE: 1 execution, or",
				"IO WalSync              1",
			},
		},
		"without query ids": {
			[]waits.Record{start(0), wait(io, 0, 1), end(0, 4), wait(read, 0, 4)},
			[]string{
				"Outside of queries, or without a query id: 1 execution ended", "1      1 ms  12.5 %", "1      4 ms  50.0 %",
				"3 ms  37.5 %",
			},
		},
	} {
		r := s.NewSessionReport()
		r.began = began
		r.Add(test.records)
		var b bytes.Buffer
		if err := r.Text(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range test.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, b.String())
			}
		}
	}
}

// TestNamesOfUnknownEvents expects numbers for events that no table has.
func TestNamesOfUnknownEvents(t *testing.T) {
	s := named(t)
	for id, want := range map[uint32]string{0x01_00ffff: "LWLock #65535", 0xee_000001: "Unknown #ee000001"} {
		class, name, known := s.Names.Name(id)
		if known || class+" "+name != want {
			t.Errorf("%#x: %s %s", id, class, name)
		}
	}
}

// TestQueryReport adds up the waits of some queries, and leaves out figures that are not known by query.
func TestQueryReport(t *testing.T) {
	s := named(t)
	sleep, read := event(t, s, "Timeout", "PgSleep"), event(t, s, "IO", "DataFileRead")
	minus := uint64(1<<64 - 3)
	figures := []waits.QueryFigures{
		{Query: 5, Calls: 2, Total: 40 * time.Millisecond}, {Query: 5, Event: sleep, Calls: 4, Total: 20 * time.Millisecond},
		{Query: minus, Calls: 1, Total: time.Second}, {Query: minus, Event: sleep, Calls: 1, Total: 10 * time.Millisecond},
		{Query: minus, Event: read, Calls: 3, Total: 10 * time.Millisecond}, {Query: 6, Event: read, Calls: 9, Total: time.Hour},
	}
	snapshot := sample(t, s)
	snapshot.Lost = waits.Lost{Queries: 8}
	info := waits.Info{Method: waits.Exact, Mechanism: "fentry", Counts: true, Queries: true}
	report := s.NewQueryReport(info, snapshot, figures, []int64{-3, 5, 9}, map[int64]string{5: "SELECT\n5"})
	var b bytes.Buffer
	if err := report.Text(&b, true, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Query -3: 1 execution ended, 1 s elapsed\nQuery 5: 2 executions ended, 40 ms elapsed\n    SELECT 5\nQuery 9: 0 ",
		"TYPE     EVENT            CALLS     TOTAL   SHARE   AVERAGE\n",
		"Timeout  PgSleep              5     30 ms  75.0 %      6 ms\n", "IO       DataFileRead         3     10 ms  25.0 %   3.33 ms\n",
		"Missing: 8 waits of queries",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := report.JSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"query_id":"-3"`, `"query":"SELECT\n5"`, `"histogram":null`, `"max_time_us":null`, `"calls":5`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
}

// TestWaitThatGoesOn: no wait of a process that only waits has ended. The text names the wait in progress.
func TestWaitThatGoesOn(t *testing.T) {
	t.Parallel()
	r := new(Server).NewSessionReport()
	r.SetGoing([]Row{{Event: waits.Event{Calls: 1, Total: 5 * time.Second}, Type: "Lock", Name: "tuple"}})
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	if want := "No wait ended meanwhile.\nGoes on: Lock:tuple, for 5 s of this time.\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
