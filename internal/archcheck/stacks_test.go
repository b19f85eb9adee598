package archcheck

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// names are function names in the stacks of processes of a kind, on every architecture. Every server since 14 exports
// them, stripped or not. "" stands for every process.
var names = map[string][]string{
	"":                             {"PostmasterMain", "main"},
	"client backend":               {"PostgresMain"},
	"parallel worker":              {"ParallelWorkerMain"},
	"checkpointer":                 {"CheckpointerMain", "WaitLatch"},
	"background writer":            {"BackgroundWriterMain", "WaitLatch"},
	"walwriter":                    {"WalWriterMain", "WaitLatch"},
	"logical replication launcher": {"ApplyLauncherMain", "WaitLatch"},
	"archiver":                     {"PgArchiverMain", "WaitLatch"},
	"autovacuum launcher":          {"WaitLatch"},
}

// busy is a statement that is on the CPU, in the server, in the C library and in the vDSO, until it is cancelled.
const busy = `DO 'DECLARE t timestamptz; BEGIN LOOP t := clock_timestamp(); PERFORM t::text; END LOOP; END'`

// TestStacks captures every process of a server through SQL, stopped, asleep and running, repeatedly. Each stack must
// end at the process's start, and contain the functions expected for a process of its kind.
func TestStacks(t *testing.T) {
	test := func(t *testing.T, binDir string) {
		s := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
			"wal_level = replica", "archive_mode = on", "archive_command = 'true'", "jit = off",
			"autovacuum_naptime = 1h", // a worker may end between the list and its capture
		}})
		s.Exec(t, `CREATE EXTENSION pg_stat_backtrace; CREATE TABLE held (i int);
			CREATE FUNCTION sleeps() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); END'`)
		work(t, s, nil)
		f := &field{Server: s, asks: s.Connect(t, s.User, "postgres"), result: Result{PostgreSQL: build(t, binDir)}}
		if _, err := f.asks.Exec(t.Context(), "SET pg_stat_backtrace.timeout = 90000"); err != nil {
			t.Fatal(err)
		}
		f.populate(t)
		for range 3 {
			f.everything(t)
		}
		f.asleep(t)
		f.running(t)
		slices.Sort(f.pauses)
		if n := len(f.pauses); n > 0 { // processes that sleep are not stopped
			f.result.PauseP50, f.result.PauseMax = f.pauses[n/2], f.pauses[n-1]
		}
		if !t.Failed() {
			report(t, f.result)
		}
	}
	if os.Getenv(envProgram) != "" {
		pgtest.Each(t, test)
		return
	}
	test(t, pgtest.BinDir(t)) // other tests have all versions on this machine
}

// build returns the server's version, and its builder.
func build(t *testing.T, binDir string) string {
	t.Helper()
	version := pgtest.Version(t, binDir)
	switch {
	case strings.HasPrefix(binDir, "/usr/lib/postgresql/"):
		return version
	case strings.Contains(binDir, "musl"):
		return version + " (musl)"
	}
	return version + " (npm)"
}

// field is a server whose processes do different things.
type field struct {
	*pgtest.Server

	asks   *pgx.Conn
	busy   uint32 // the process that is on the CPU
	pauses []float64
	result Result
	shown  int // stacks with frames found by a frame pointer that were printed
}

// populate starts backends. One holds a lock and one waits for it. One sleeps in PL/pgSQL, and one has a parallel
// worker. One is on the CPU, and one is idle.
func (f *field) populate(t *testing.T) {
	t.Helper()
	f.start(t, `BEGIN; LOCK TABLE held; SELECT sleeps()`, "PgSleep")
	f.start(t, `SELECT i FROM held`, "relation")
	setting := "force_parallel_mode"
	if f.Major >= 16 {
		setting = "debug_parallel_query"
	}
	f.start(t, `SET `+setting+` = on; SELECT pg_sleep(3600)`, "")
	f.busy = f.start(t, busy, "")
	f.Connect(t, f.User, "postgres")
	wait(t, "a parallel worker sleeps", func() bool {
		return f.count(t, "backend_type = 'parallel worker' AND wait_event = 'PgSleep'") == 1
	})
}

// start runs a statement in a new session, until the server ends. It returns when the session waits for the event.
func (f *field) start(t *testing.T, sql, event string) (pid uint32) {
	t.Helper()
	c := f.Connect(t, f.User, "postgres")
	pid = c.PgConn().PID()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.PgConn().Exec(t.Context(), sql).ReadAll()
	}()
	t.Cleanup(func() { <-ended }) // before the session is closed
	wait(t, sql, func() bool {
		const waits = "pid = %d AND state = 'active' AND coalesce(wait_event, '') LIKE '%%%s'"
		return f.count(t, fmt.Sprintf(waits, pid, event)) == 1
	})
	return pid
}

func (f *field) count(t *testing.T, condition string) (n int) {
	t.Helper()
	if err := f.asks.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE `+condition).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// everything captures all processes in one request, and then each process in a separate request.
func (f *field) everything(t *testing.T) {
	t.Helper()
	rows, err := f.asks.Query(t.Context(), `SELECT pid, backend_type, coalesce(engine, ''), coalesce(pause_us, 0),
		coalesce(backtrace, ''), coalesce(error, '') FROM pg_stat_backtrace WHERE pid <> pg_backend_pid()`)
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	pids := make(map[int]string)
	var pid int
	var kind, engine, backtrace, problem string
	var pause float64
	if _, err := pgx.ForEachRow(rows, []any{&pid, &kind, &engine, &pause, &backtrace, &problem}, func() error {
		kinds[kind]++
		pids[pid] = kind
		if problem != "" || engine != "stop" && engine != "blocked" {
			t.Errorf("%s: engine %q, %s", kind, engine, problem)
		}
		if engine == "stop" {
			f.pauses = append(f.pauses, pause)
		}
		f.judge(t, kind, backtrace)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for kind := range names {
		if kind != "" && kinds[kind] == 0 {
			t.Errorf("no %s among %v", kind, kinds)
		}
	}
	f.result.Processes, f.result.Kinds = len(pids), len(kinds)
	for pid, kind := range pids {
		f.judge(t, kind, f.backtrace(t, pid))
	}
}

// backtrace captures a process as an administrator does.
func (f *field) backtrace(t *testing.T, pid int) (stack string) {
	t.Helper()
	if err := f.asks.QueryRow(t.Context(), `SELECT pg_get_backtrace($1)`, pid).Scan(&stack); err != nil {
		t.Fatal(err)
	}
	return stack
}

var (
	line = regexp.MustCompile(`^#\d+\s+0x[0-9a-f]{16}\s+in\s+\S+\+0x[0-9a-f]+`)
	// outermost is the first function of a process. On some servers _start has no size, and so its name is not used.
	// On ppc64le, _start jumps to the C library without leaving a frame. In musl, that code becomes the function that
	// calls main.
	outermost = map[bool]*regexp.Regexp{
		false: regexp.MustCompile(` in (_start|postgres|ld-musl-[a-z0-9_]+\.so\.1)\+0x[0-9a-f]+ `),
		true:  regexp.MustCompile(` in __libc_start_main\+0x[0-9a-f]+ `),
	}[runtime.GOARCH == "ppc64le"]
	inVDSO = regexp.MustCompile(`\[vdso\]`)
)

// judge looks at one stack.
func (f *field) judge(t *testing.T, kind, stack string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stack, "\n"), "\n")
	f.result.Captures++
	f.result.Frames += len(lines)
	// musl's function that calls main never returns, and its code does not give its caller.
	whole := !strings.Contains(stack, "stack cut") || strings.Contains(lines[len(lines)-1], "no way to a return")
	bad := !whole || !outermost.MatchString(lines[len(lines)-1]+" ")
	if strings.Contains(stack, "[by frame pointer") && f.shown < 3 {
		f.shown++
		t.Logf("%s:\n%s", kind, stack)
	}
	for _, l := range lines {
		bad = bad || !line.MatchString(l)
		if strings.Contains(l, "[by frame pointer") {
			f.result.Chained++
		}
		if strings.Contains(l, "[by instructions") {
			f.result.Followed++
		}
		if strings.Contains(l, "[signal handler called") {
			f.result.Signals++
		}
		if inVDSO.MatchString(l) {
			f.result.VDSO++
		}
	}
	for _, name := range slices.Concat(names[""], names[kind]) {
		bad = bad || !strings.Contains(stack, " in "+name+"+0x")
	}
	if bad {
		t.Errorf("%s:\n%s", kind, stack)
	}
}

// asleep captures the sleeping processes twice. The addresses must be the same. A capture without a stop shows fewer
// registers. Its addresses must be the same, as far as it reaches.
func (f *field) asleep(t *testing.T) {
	t.Helper()
	for pid, kind := range f.sleepers(t) {
		var stopped, again, unstopped []string
		wait(t, kind+" sleeps through three captures", func() bool {
			stopped, again = f.addresses(t, pid, false), f.addresses(t, pid, false)
			unstopped = f.addresses(t, pid, true)
			return slices.Equal(stopped, again) && len(unstopped) <= len(stopped) &&
				slices.Equal(unstopped, stopped[:len(unstopped)])
		})
		f.result.Asleep++
		if len(unstopped) == len(stopped) {
			f.result.Unstopped++
		} else {
			t.Logf("%s: %d of %d frames without a stop", kind, len(unstopped), len(stopped))
		}
	}
}

// sleepers are the processes that wait, by pid.
func (f *field) sleepers(t *testing.T) map[int]string {
	t.Helper()
	rows, err := f.asks.Query(t.Context(), `SELECT pid, backend_type FROM pg_stat_activity
		WHERE wait_event IS NOT NULL AND pid NOT IN (pg_backend_pid(), $1)`, f.busy)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[int]string)
	var pid int
	var kind string
	if _, err := pgx.ForEachRow(rows, []any{&pid, &kind}, func() error { found[pid] = kind; return nil }); err != nil {
		t.Fatal(err)
	}
	return maps.Clone(found)
}

// addresses of the frames of a process.
func (f *field) addresses(t *testing.T, pid int, nonstop bool) []string {
	t.Helper()
	if _, err := f.asks.Exec(t.Context(), fmt.Sprintf("SET pg_stat_backtrace.nonstop = %v", nonstop)); err != nil {
		t.Fatal(err)
	}
	rows, err := f.asks.Query(t.Context(), `SELECT address FROM pg_get_backtrace_frames($1) ORDER BY level`, pid)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// running captures the process on the CPU at many moments.
func (f *field) running(t *testing.T) {
	t.Helper()
	if _, err := f.asks.Exec(t.Context(), "RESET pg_stat_backtrace.nonstop"); err != nil {
		t.Fatal(err)
	}
	before := f.result
	stacks := make(map[string]bool)
	const times = 200
	for range times {
		stack := f.backtrace(t, int(f.busy))
		stacks[strings.SplitN(stack, " in ", 2)[0]] = true
		f.judge(t, "client backend", stack)
	}
	if len(stacks) < 10 {
		t.Errorf("%d captures of a busy process, and %d different places", times, len(stacks))
	}
	t.Logf("busy: %d places, %d frames, %d of them in the vDSO", len(stacks), f.result.Frames-before.Frames,
		f.result.VDSO-before.VDSO)
}
