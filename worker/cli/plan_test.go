package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/screen/view"
)

// TestPlan prints the plan of a statement that waits, of an idle backend, and errors.
func TestPlan(t *testing.T) {
	t.Setenv("DEBUGINFOD_CACHE_PATH", t.TempDir())
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, server.User, "postgres")
	pid := strconv.Itoa(int(conn.PgConn().PID()))
	status, text, stderr := run(t, "plan", pid)
	if status != 0 || stderr != "" || !strings.Contains(text, ": no statement\nThe process executes no plan now") {
		t.Errorf("idle: status %d, %q\n%s", status, stderr, text)
	}

	holder := server.Connect(t, server.User, "postgres")
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)  FROM pg_class c").ReadAll()
		done <- err
	}()
	pgtest.Wait(t, "wait for the lock", func() bool {
		var waits bool
		err := holder.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted").Scan(&waits)
		return err == nil && waits
	})
	want := regexp.MustCompile(`^process ` + pid + `, PostgreSQL \d+: 1 statement\nUnproven layout: .*\n` +
		`\nlevel 1: SELECT pg_advisory_xact_lock\(1\) FROM pg_\.\.\.\n   rows returned: 0\n` +
		`=> (Seq|Index Only) Scan .*pg_class c  \(cost=\d+\.\d\d\.\.\d+\.\d\d rows=\d+ width=\d+\)\n( +Block: 1 of \d+ .*\n)?$`)
	for _, arguments := range [][]string{{"plan"}, {"plan", "--nonstop"}} {
		arguments = append(arguments, "--query-width", "40", pid)
		if status, text, stderr := run(t, arguments...); status != 0 || stderr != "" || !want.MatchString(text) {
			t.Errorf("%q: status %d, %q\n%s", arguments, status, stderr, text)
		}
	}
	planFormats(t, server, pid)
	killedReaders(t, pid)
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_unlock(1)"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	if status, _, stderr := run(t, "plan", sleeper(t)); status != 1 || !strings.Contains(stderr, "is no process of a PostgreSQL server") {
		t.Errorf("another program: status %d, %q", status, stderr)
	}
	if status, _, stderr := run(t, "plan", "2147483646"); status != 1 || !strings.Contains(stderr, "there is no process 2147483646") {
		t.Errorf("no process: status %d, %q", status, stderr)
	}
	planWorkers(t, server, conn)
	for _, arguments := range [][]string{
		{"--timeout", "0s", pid}, {"--format", "csv", pid}, {"--watch", "1ms", pid}, {"-D", server.DataDir, pid},
		{"--connection", "user=x", pid}, {"--calibrate", "--no-calibrate", pid}, {"x"},
	} {
		if status, _, _ := run(t, append([]string{"plan"}, arguments...)...); status != 2 {
			t.Errorf("%q: status %d", arguments, status)
		}
	}
}

// planFormats prints JSON, all statements of the server, and the plan after a calibration.
func planFormats(t *testing.T, server *pgtest.Server, pid string) {
	t.Helper()
	var got struct {
		PID        int
		Version    int
		Proven     bool `json:"layout_proven"`
		Statements []struct {
			Query string `json:"Query Text"`
			Rows  *int   `json:"Rows Returned"`
			Plan  map[string]any
		}
	}
	status, text, stderr := run(t, "plan", "--format", "json", pid)
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 0 {
		t.Fatalf("%v: status %d, %q\n%s", err, status, stderr, text)
	}
	if len(got.Statements) != 1 || strconv.Itoa(got.PID) != pid || got.Proven {
		t.Fatalf("%+v", got)
	}
	one := got.Statements[0]
	if one.Plan["Alias"] != "c" || one.Plan["Running"] != true || one.Plan["Relation Name"] != "pg_class" || one.Rows == nil || *one.Rows != 0 ||
		one.Query != "SELECT pg_advisory_xact_lock(1)  FROM pg_class c" {
		t.Errorf("%+v", one)
	}
	if status, text, _ := run(t, "plan", "-D", server.DataDir); status != 0 || !strings.HasPrefix(text, "process "+pid+", PostgreSQL") {
		t.Errorf("all: status %d\n%s", status, text)
	}
	phraseOfPlan(t, server, pid, false)
	connection := "host=" + server.SocketDir + " port=" + strconv.Itoa(server.Port) + " user=" + server.User + " dbname=postgres"
	for _, arguments := range [][]string{{"--calibrate", "--connection", connection, pid}, {pid}} { // the second takes the first's result
		status, text, stderr := run(t, append([]string{"plan"}, arguments...)...)
		if status != 0 || stderr != "" || strings.Contains(text, "Unproven") || !strings.Contains(text, "\n=> ") ||
			!strings.Contains(text, "pg_class c  (cost=") {
			t.Errorf("calibrated: status %d, %q\n%s", status, stderr, text)
		}
	}
	phraseOfPlan(t, server, pid, true)
	if _, text, _ := run(t, "plan", "--no-calibrate", pid); !strings.Contains(text, "Unproven layout") {
		t.Errorf("not calibrated:\n%s", text)
	}
}

// phraseOfPlan: the screen and activity say what the running node does, only if its fields were compared with EXPLAIN.
func phraseOfPlan(t *testing.T, server *pgtest.Server, pid string, proven bool) {
	t.Helper()
	phrase := regexp.MustCompile(`runs (Seq Scan on pg_class c, block 1 of \d+|Index Only Scan using \w+ on pg_class c)`)
	var screen view.Data
	if err := json.Unmarshal([]byte(top(t, "-D", server.DataDir, "--pid", pid, "--format", "json", "-n", "1")), &screen); err != nil {
		t.Fatal(err)
	}
	if p := screen.Plan; p == nil || p.Unproven == proven || phrase.MatchString(p.Phrase) != proven || !proven && p.Phrase != "" {
		t.Errorf("screen: %+v", p)
	}
	for _, plans := range []bool{false, true} {
		settles(t, func() string {
			_, text, stderr := run(t, "activity", "-D", server.DataDir, "--format", "json", "--plans="+strconv.FormatBool(plans))
			if got := phrase.MatchString(text); got != (proven && plans) || !strings.Contains(text, "advisory lock") {
				return fmt.Sprintf("activity, plans %t: %q\n%s", plans, stderr, text)
			}
			return ""
		})
	}
}

// plansVariable makes the test binary a program that reads the plans of a process again and again.
const plansVariable = "CLI_TEST_PLANS"

func readPlansForEver(pid int) {
	c, err := capture.New(capture.Config{})
	if err != nil {
		os.Exit(1)
	}
	for first := true; ; first = false {
		_, err := c.Plans(context.Background(), process.Target{PID: pid, UID: -1}, false)
		for errors.Is(err, context.DeadlineExceeded) { // a slow disk gives the server's program late
			_, err = c.Plans(context.Background(), process.Target{PID: pid, UID: -1}, false)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if first {
			fmt.Println("ready")
		}
	}
}

// killedReaders kills programs that read plans, at random moments. The process that they read must run on.
func killedReaders(t *testing.T, pid string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 12 {
		cmd := exec.Command(exe)
		cmd.Env, cmd.Stderr = append(os.Environ(), plansVariable+"="+pid), os.Stderr
		output, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, readErr := bufio.NewReader(output).ReadString('\n')
		for range rand.IntN(20000) { // some moments, without a sleep
			runtime.Gosched()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if readErr != nil || err != nil || !strings.Contains(string(status), "TracerPid:\t0\n") || strings.Contains(string(status), "State:\tt") ||
			strings.Contains(string(status), "State:\tT") {
			t.Fatalf("%v, %v\n%.300s", readErr, err, status)
		}
	}
}

// planWorkers prints the plans of parallel workers below their leader's.
func planWorkers(t *testing.T, server *pgtest.Server, conn *pgx.Conn) {
	t.Helper()
	const sql = `SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
		SET enable_indexonlyscan = off; SET max_parallel_workers_per_gather = 1; SELECT count(pg_sleep(600)::text) FROM pg_proc`
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		done <- err
	}()
	control := server.Connect(t, server.User, "postgres")
	pgtest.Wait(t, "leader and worker", func() bool {
		var n int
		err := control.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n > 1
	})
	status, text, stderr := run(t, "plan", strconv.Itoa(int(conn.PgConn().PID())))
	if _, err := control.Exec(t.Context(), "SELECT pg_cancel_backend($1)", int(conn.PgConn().PID())); err != nil {
		t.Fatal(err)
	}
	<-done
	if status != 0 || strings.Count(text, "Parallel Seq Scan on pg_proc") != 2 || !strings.Contains(text, "parallel worker, read a moment later:\n    process ") {
		t.Errorf("status %d, %q\n%s", status, stderr, text)
	}
	t.Log(text)
}
