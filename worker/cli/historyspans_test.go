package cli

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/cli/historycmd"
	"pg_stat_backtrace/worker/history/store"
)

// recordedChain records ten sweeps: reporting is idle in transaction, ALTER waits for it, and later a SELECT waits behind ALTER. A
// statement alternates between waits, a session runs one statement after the other, and the worker runs its own SQL. Between the
// sixth and the seventh sweep is a gap.
func recordedChain(t *testing.T) (dir string, since time.Time) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	w, err := store.Open(store.Options{Dir: dir, MinFree: 1, Meta: store.Meta{SystemID: "1", ServerVersion: "18.4"}})
	if err != nil {
		t.Fatal(err)
	}
	since = time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour).Add(3 * time.Minute)
	const oid = 16386
	session := func(pid int32, app, state, query string) store.Row {
		return store.Row{PID: pid, Type: "client backend", User: "app", Database: "shop", DatabaseID: oid, App: app, State: state, Query: query,
			XactStart: since.Add(-12 * time.Minute).UnixMicro(), QueryStart: since.Add(-time.Minute).UnixMicro()}
	}
	lock := func(r store.Row, by ...store.Blocker) store.Row {
		r.WaitType, r.WaitEvent, r.WaitStart, r.BlockedBy = "Lock", "relation", since.Add(-30*time.Second).UnixMicro(), by
		for i := range by {
			by[i].Lock, by[i].Object = "relation", "orders (relation 16513 of database 16386)"
		}
		return r
	}
	for i := range 10 {
		at := since.Add(time.Duration(i+1) * time.Second)
		if i >= 6 {
			at = at.Add(20 * time.Second)
		}
		idle := session(10, "reporting", "idle in transaction", "SELECT count(*) FROM orders")
		idle.WaitType, idle.WaitEvent = "Client", "ClientRead"
		long := session(13, "", "active", "SELECT sum(n) FROM orders")
		if long.Phrase = "scans orders"; i%2 == 0 {
			long.WaitType, long.WaitEvent, long.Phrase = "IO", "DataFileRead", "scans orders: reads a page"
		}
		short := session(14, "crm", "active", "SELECT ?")
		short.XactStart, short.QueryStart = at.UnixMicro(), at.UnixMicro()
		own := session(15, "pg_stat_backtrace", "active", "SELECT own")
		rows := []store.Row{
			idle, lock(session(11, "", "active", "ALTER TABLE orders"), store.Blocker{PID: 10, Mode: "AccessExclusiveLock"}), long, short, own,
			{PID: 9, Type: "checkpointer", WaitType: "IO", WaitEvent: "DataFileSync"},
		}
		if i >= 2 {
			rows = append(rows, lock(session(12, "shop", "active", "SELECT * FROM orders"), store.Blocker{PID: 11, Mode: "AccessShareLock", Soft: true}))
		}
		s := store.Sweep{Time: at, Period: time.Second, Rows: rows}
		if i == 4 || i == 5 {
			s.Note = "no stacks of 2 sessions"
		}
		if err := w.Append(&s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, since
}

// spanned returns the output of history for the sweeps of recordedChain, without repeated spaces.
func spanned(t *testing.T, dir string, since time.Time, arguments ...string) string {
	t.Helper()
	until := since.Add(31 * time.Second)
	text := history(t, append([]string{"--record-dir", dir, "--since", since.Format(time.RFC3339), "--until", until.Format(time.RFC3339)}, arguments...)...)
	return regexp.MustCompile(` +`).ReplaceAllString(strings.ReplaceAll(text, since.Local().Format("15:04:"), ""), " ")
}

// TestHistorySpans: text has one line for the time in which a session did the same.
func TestHistorySpans(t *testing.T) {
	dir, since := recordedChain(t)
	got := spanned(t, dir, since)
	_, got, _ = strings.Cut(got, "\n") // the first line has names of files
	const head = "from to for pid process session state wait transaction blocked by phrase query\n"
	lines := func(from, to, long, also, waited string) string {
		return from + " " + to + " " + long + " 9 checkpointer - - IO:DataFileSync - - - -\n" +
			from + " " + to + " " + long + " 10 reporting app@shop idle in transaction Client:ClientRead 12 min " + also + " s - - SELECT count(*) FROM orders\n" +
			from + " " + to + " " + long + " 11 client backend app@shop active Lock:relation " + waited + " 12 min " + also +
			" s 10 AccessExclusiveLock relation orders - ALTER TABLE orders\n"
	}
	want := head +
		lines("01", "06", "6.0 s", "6", "36 s") +
		"01 06 6.0 s 13 client backend app@shop active IO:DataFileRead 50 %, no wait 50 % 12 min 6 s - scans orders 50 % SELECT sum(n) FROM orders\n" +
		"01 06 6.0 s 14 crm app@shop active no wait 6 or more - - SELECT ?\n" +
		"03 06 4.0 s 12 shop app@shop active Lock:relation 36 s 12 min 6 s 11 (waits in front) (root: 10 reporting) AccessShareLock relation orders - SELECT * FROM orders\n" +
		"05 06 2.0 s -- no stacks of 2 sessions\n" +
		"06 26 20 s -- not recorded\n" +
		lines("27", "30", "4.0 s", "30", "1 min") +
		"27 30 4.0 s 12 shop app@shop active Lock:relation 1 min 12 min 30 s 11 (waits in front) (root: 10 reporting) AccessShareLock relation orders - SELECT * FROM orders\n" +
		"27 30 4.0 s 13 client backend app@shop active IO:DataFileRead 50 %, no wait 50 % 12 min 30 s - scans orders 50 % SELECT sum(n) FROM orders\n" +
		"27 30 4.0 s 14 crm app@shop active no wait 4 or more - - SELECT ?\n" +
		"10 sweeps, 68 rows; not recorded: 20 s in 1 gap; sweeps lost: 0, late: 0\n" +
		"left out: 10 rows, 10.0 s, of pg_stat_backtrace's own sessions (--own shows them)\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := spanned(t, dir, since, "--pid", "12,15"); strings.Count(got, "SELECT * FROM orders") != 2 || strings.Count(got, "SELECT own") != 2 ||
		strings.Contains(got, "reporting app@shop") || strings.Contains(got, "left out") {
		t.Errorf("--pid prints\n%s", got)
	}
	if got := spanned(t, dir, since, "--own"); strings.Count(got, "SELECT own") != 2 || strings.Contains(got, "left out") {
		t.Errorf("--own prints\n%s", got)
	}
	if got := spanned(t, dir, since, "--each-sweep"); strings.Count(got, "ALTER TABLE orders") != 10 || strings.Contains(got, "SELECT own") ||
		!strings.Contains(got, " 9 checkpointer - - IO:DataFileSync") {
		t.Errorf("--each-sweep prints\n%s", got)
	}
	if got := spanned(t, dir, since, "-f", "csv", "--pid", "11"); strings.Count(got, "ALTER TABLE orders") != 10 || strings.Count(got, "\n") != 11 {
		t.Errorf("csv has\n%s", got)
	}
	if got := spanned(t, dir, since, "-f", "csv"); strings.Count(got, "SELECT own") != 10 {
		t.Errorf("csv lacks the own sessions:\n%s", got)
	}
}

// TestHistoryRootBlockers: the session at the begin of the chain blocks both others. Totals leave out the worker's own sessions.
func TestHistoryRootBlockers(t *testing.T) {
	dir, since := recordedChain(t)
	got := spanned(t, dir, since, "--by", "blocker")
	if !strings.Contains(got, "18.0 31.0 % 1.80 10 reporting (client backend, app, idle in transaction)\n58.0 sampled seconds") ||
		strings.Contains(got, " 11 ") || !strings.Contains(got, "left out: 10 rows, 10.0 s") {
		t.Errorf("got\n%s", got)
	}
	got = history(t, "--record-dir", dir, "--since", since.Format(time.RFC3339), "--until", since.Add(time.Minute).Format(time.RFC3339),
		"--by", "pid,application", "-f", "json")
	var last historycmd.Summary
	if err := json.Unmarshal([]byte(got), &last); err != nil || last.Own != 10 || *last.Sampled != 58 || len(last.Totals) != 6 {
		t.Errorf("%v: %+v", err, last)
	}
}
