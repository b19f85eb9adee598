package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/cli/historycmd"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
)

// recorderOf returns a recorder of a server, and its directory.
func recorderOf(t *testing.T, s *pgtest.Server) (*recorder.Recorder, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return recorder.New(recorder.Options{
		TakeStack: func(ctx context.Context, pid int, limit time.Duration) (*recorder.Stack, error) {
			c, err := cluster.ByDataDir(s.DataDir)
			if err != nil {
				return nil, err
			}
			return recorder.TakeStack(ctx, capturer, c, pid, limit)
		},
		Store: store.Options{Dir: dir, MinFree: 1}, DataDir: s.DataDir, Redact: []string{"secretive"}, Version: "test",
		Server: func() (cluster.Cluster, error) { return cluster.ByDataDir(s.DataDir) },
	}), dir
}

// sweepAt makes a sweep, and waits until the disk has it: a recorder does not wait for a slow disk.
func sweepAt(t *testing.T, r *recorder.Recorder, dir string, at time.Time) {
	t.Helper()
	if err := r.Sweep(at, 0); err != nil {
		t.Fatal(err)
	}
	at = at.UTC().Truncate(time.Microsecond)
	pgtest.Wait(t, "the sweep on the disk", func() bool {
		_, stdout, _ := run(t, "history", "--record-dir", dir, "-f", "json",
			"--since", at.Format(time.RFC3339Nano), "--until", at.Add(time.Microsecond).Format(time.RFC3339Nano))
		return strings.Contains(stdout, `{"time":"`+at.Format(time.RFC3339Nano)) // not the bounds of the span, and not those of a gap
	})
}

func history(t *testing.T, arguments ...string) string {
	t.Helper()
	return succeeds(t, append([]string{"history"}, arguments...)...)
}

// TestHistory records a session that waits for a lock, its blocker that is idle in transaction, and an idle session. The
// command reads them back while the server is down.
func TestHistory(t *testing.T) {
	each := pgtest.One
	if pgtest.Full() {
		each = pgtest.Each
	}
	each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		s.Exec(t, "CREATE TABLE t AS SELECT 1 n; CREATE ROLE secretive SUPERUSER LOGIN")
		ctx := context.Background()
		holder, waiter, quiet := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		hidden := s.Connect(t, "secretive", "postgres")
		if _, err := holder.PgConn().Exec(ctx, "BEGIN; UPDATE t SET n = 1471147114").ReadAll(); err != nil {
			t.Fatal(err)
		}
		if _, err := hidden.PgConn().Exec(ctx, "BEGIN; SELECT n AS hidden_name FROM t").ReadAll(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = waiter.PgConn().Exec(ctx, "UPDATE t SET n = 1471247124 /* comment */ WHERE n = '1'").ReadAll()
		}()
		pgtest.Wait(t, "the lock", func() bool {
			n := 0
			err := quiet.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&n)
			return err == nil && n > 0
		})
		r, dir := recorderOf(t, s)
		sweep := func(at time.Time) {
			t.Helper()
			sweepAt(t, r, dir, at)
		}
		early := time.Now().Add(-2 * time.Hour)
		pgtest.Wait(t, "a stack", func() bool { // later sweeps need not take it again
			early = early.Add(time.Second)
			sweep(early)
			return strings.Contains(history(t, "--record-dir", dir, "--since", "-3h", "-f", "folded"), "ProcSleep")
		})
		now := time.Now().Add(-time.Minute) // the times of the sweeps are the test's
		since := now.Add(-4 * time.Minute).Format(time.RFC3339)
		history := func(t *testing.T, arguments ...string) string { // however long the test takes
			t.Helper()
			return history(t, append(arguments, "--since", since)...)
		}
		for i := range 3 {
			sweep(now.Add(time.Duration(i) * time.Second))
		}
		checkTake(t, s.DataDir, dir, holder.PgConn().PID())
		if _, err := holder.PgConn().Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
			t.Fatal(err)
		}
		<-done
		s.Stop("fast")
		sweep(now.Add(13 * time.Second)) // 9 seconds late
		holderPID, waiterPID, quietPID := holder.PgConn().PID(), waiter.PgConn().PID(), quiet.PgConn().PID()

		spans := history(t, "--record-dir", dir, "-D", s.DataDir)
		if want := regexp.MustCompile(fmt.Sprintf(`3\.0 s  +%d .* %d ShareLock transaction \d+ .*UPDATE t SET n = \? WHERE n = \?\n`, waiterPID, holderPID)); !want.MatchString(spans) ||
			!strings.Contains(spans, "  10 s        -- not recorded\n") {
			t.Errorf("no line of 3 seconds, or no gap of 10 seconds, in\n%s", spans)
		}
		text := history(t, "--record-dir", dir, "-D", s.DataDir, "--each-sweep")
		for _, want := range []string{
			fmt.Sprintf("blocked by %d ShareLock", holderPID), "UPDATE t SET n = ? WHERE n = ?", "idle in transaction", "Lock:transactionid",
			"-- not recorded: ", "(10 s)", "no sessions: the server does not run", "ended", "4 sweeps", "times in",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
		for _, secret := range []string{"1471147114", "1471247124", "comment", "hidden_name", fmt.Sprintf("  %d  ", quietPID)} {
			if strings.Contains(strings.ReplaceAll(spans+text, fmt.Sprintf(" %d ", holderPID), ""), secret) && !strings.Contains(fmt.Sprint(holderPID, waiterPID), secret) {
				t.Errorf("%q is in\n%s%s", secret, spans, text)
			}
		}
		totals := history(t, "--record-dir", dir, "--by", "wait,user", "-f", "csv")
		for _, want := range []string{"\n3.000,", ",3,Lock:transactionid,postgres\n", "seconds,share,samples,wait,user", "secretive"} {
			if !strings.Contains(totals, want) {
				t.Errorf("%q is missing in\n%s", want, totals)
			}
		}
		checkShares(t, totals)
		if got := history(t, "--record-dir", dir, "--by", "stack,phrase", "--query-width", "400"); !strings.Contains(got, "ProcSleep < ") ||
			!strings.Contains(got, "waits for ") {
			t.Errorf("no stack and phrase in\n%s", got)
		}
		if got := history(t, "--record-dir", dir, "-f", "folded"); !folded.MatchString(got) {
			t.Errorf("not folded:\n%s", got)
		}
		blockers := history(t, "--record-dir", dir, "--by", "blocker")
		if want := fmt.Sprintf("%d (client backend, postgres, idle in transaction)", holderPID); !strings.Contains(blockers, want) {
			t.Errorf("%q is missing in\n%s", want, blockers)
		}
		checkJSON(t, history(t, "--record-dir", dir, "-f", "json"), int32(waiterPID), int32(holderPID))
	})
}

// checkShares compares the shares of totals with their seconds. A process of the server that writes to a slow disk adds a row.
func checkShares(t *testing.T, totals string) {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(totals)).ReadAll()
	if err != nil || len(rows) < 4 {
		t.Fatalf("%v in\n%s", err, totals)
	}
	number := func(text string) float64 {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Error(err)
		}
		return v
	}
	sum := 0.0
	for _, row := range rows[1:] {
		sum += number(row[0])
	}
	for _, row := range rows[1:] {
		if math.Abs(number(row[1])-number(row[0])/sum) > 0.0001 {
			t.Errorf("share %s of %s in %g seconds:\n%s", row[1], row[0], sum, totals)
		}
	}
}

var folded = regexp.MustCompile(`(?m)^client_backend;.*PostgresMain;.*;ProcSleep;.*;\[Lock:transactionid\] 3000$`)

// checkJSON expects the waiter with its blocker in the first line, and the summary in the last.
func checkJSON(t *testing.T, text string, waiter, holder int32) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var first historycmd.Sweep
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	found := false
	for i := range first.Session {
		row := &first.Session[i]
		found = found || row.PID == waiter && len(row.BlockedBy) == 1 && row.BlockedBy[0].PID == holder && row.WaitStart != nil
	}
	if !found {
		t.Errorf("no session %d that %d blocks in %s", waiter, holder, lines[0])
	}
	var last struct {
		Summary struct {
			Sweeps int
			Gaps   []any
		}
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Summary.Sweeps != 4 || len(last.Summary.Gaps) == 0 {
		t.Errorf("%v: %s", err, lines[len(lines)-1])
	}
}

// TestHistoryRefuses expects messages for wrong flags and for a directory without a history.
func TestHistoryRefuses(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", "")
	empty := t.TempDir()
	for arguments, want := range map[string]string{
		"":                                    "give the directory of the history",
		"--record-dir x --by color":           "--by must be of wait",
		"--record-dir x -f xml":               "--format must be one of text, json, csv, folded, pprof, speedscope, html",
		"--record-dir x --since soon":         `"soon" is no time`,
		"--record-dir x --until -xm":          `"-xm" is no time`,
		"--record-dir x --since now":          "is not after --since",
		"--record-dir x --since 2999-01-01":   "is in the future",
		"--record-dir x -D y --cluster 1":     "exclude each other",
		"--record-dir " + empty:               "no history is recorded in " + empty,
		"--record-dir " + empty + " -D /none": "cannot read pg_control",
		"--record-dir x --by wait --limit -1": "must be positive",
	} {
		var stdout, stderr strings.Builder
		status := Main("test", append([]string{"history"}, strings.Fields(arguments)...), &stdout, &stderr)
		if status == exitOK || !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
			t.Errorf("history %s: status %d, %q; want %q", arguments, status, stderr.String(), want)
		}
	}
}

// TestParseWhen has a table of times, in a zone with summer time.
func TestParseWhen(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	now := time.Date(2026, 3, 30, 1, 30, 0, 0, zone) // the day before had 23 hours
	for in, want := range map[string]string{
		"03:00":                "2026-03-30T03:00:00+02:00",
		"03:00:07":             "2026-03-30T03:00:07+02:00",
		"today 00:10":          "2026-03-30T00:10:00+02:00",
		"yesterday 01:00":      "2026-03-29T01:00:00+01:00",
		"yesterday":            "2026-03-29T00:00:00+01:00",
		"2026-03-28 03:00":     "2026-03-28T03:00:00+01:00",
		"2026-03-28T03:00:01Z": "2026-03-28T04:00:01+01:00",
		"-15m":                 "2026-03-30T01:15:00+02:00",
		"now":                  "2026-03-30T01:30:00+02:00",
	} {
		got, err := console.ParseWhen(in, now)
		if err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%q: %v, %v; want %s", in, got.Format(time.RFC3339), err, want)
		}
	}
	for _, in := range []string{"", "25:00", "3", "tomorrow 03:00", "yesterday noon", "-", "2026-13-01", "-15"} {
		if got, err := console.ParseWhen(in, now); err == nil {
			t.Errorf("%q is %v", in, got)
		}
	}
}

// TestRecordFlags expects messages for values that have no meaning.
func TestRecordFlags(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", "")
	for arguments, want := range map[string]string{
		"--record 1":                             "--record: \"1\" is neither off nor a time",
		"--record 1ms --record-dir /x":           "--record must be off, or a time from",
		"--record 1s":                            "--record needs a directory",
		"--record-dir x":                         "must be an absolute path",
		"--record-dir /x --record-keep 0d":       "is not a number of days",
		"--record-dir /x --record-keep 1":        "is not a time such as 7d",
		"--record-dir /x --record-keep 1s":       "--record-keep must be at least 1 min, not 1s",
		"--record-dir /x --record-size 1":        "--record-size must be at least 1024 kB, not 1",
		"--record-dir /x --record-size 1x":       "--record-size",
		"--record-dir /x --record-min-free 0":    "must be positive",
		"--record-dir /x --record-query-text no": "--record-query-text must be",
		"--all --record-dir x":                   "must be an absolute path",
		"--all --record 1s":                      "--record needs a directory",
		"--all --record-dir /x --rules /no/file": "open /no/file: no such file",
	} {
		var stdout, stderr strings.Builder
		words := strings.Fields(arguments)
		if words[0] != "--all" {
			words = append(words, "-D", os.TempDir())
		}
		if status := Main("test", append([]string{"worker"}, words...), &stdout, &stderr); status != exitUsage ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("worker %s: status %d, %q; want %q", arguments, status, stderr.String(), want)
		}
	}
}
