package capture_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

//go:embed testdata/load.sql
var loadSQL string

// commands are the commands for the observed backend. Each runs longer than the longest random delay.
func commands() []string {
	return []string{
		`SELECT loops(g) FROM generate_series(0, 1000) g`,
		`SELECT catches(g), sql_two(g) FROM generate_series(0, 1000) g`,
		`SELECT descend(8, g) FROM generate_series(0, 2000) g`,
		`SELECT * FROM "Other Schema"."Löwe ""x""(,"(1.5, 'a', 'b'), generate_series(1, 100)
		 UNION ALL SELECT sql_two(g), g FROM generate_series(0, 1000) g`,
		`UPDATE watched SET n = n + busy(0) * 0 + catches(n) * 0`,
		`INSERT INTO watched SELECT g, 'x' FROM generate_series(0, 1000) g`,
		`DO $$ BEGIN FOR i IN 0..1000 LOOP PERFORM busy(i); EXECUTE 'DO ''BEGIN PERFORM loops(1); END'''; END LOOP; END $$`,
		`DO $$ BEGIN FOR i IN 0..1000 LOOP CALL steps(i); END LOOP; END $$`,
		`DO $$ BEGIN PERFORM pg_advisory_xact_lock(4711); END $$`,
		`DO $$ DECLARE v text := pg_sleep(30)::text; BEGIN NULL; END $$`,
		`COPY watched FROM STDIN`,
		`VACUUM (DISABLE_PAGE_SKIPPING) vacuumed`,
		`VACUUM (PARALLEL 2, DISABLE_PAGE_SKIPPING) indexed`,
		`UPDATE held SET txt = 'other' WHERE n = 1`,
		`DO $$ BEGIN PERFORM n FROM held WHERE n = 1 FOR UPDATE; END $$`,
		`DELETE FROM held WHERE n = 1`,
		`INSERT INTO held VALUES (2)`,
	}
}

// TestMoments compares snapshots at random times with PostgreSQL's own reports. The levels must equal the CONTEXT of
// the error when the backend is cancelled there. The wait event and query must equal pg_stat_activity. SIGSTOP stops
// the backend meanwhile. PGSB_TEST_MOMENTS sets the number of snapshots for each server.
func TestMoments(t *testing.T) {
	moments := 15
	if pgtest.Full() {
		moments = 51
	}
	if s := os.Getenv("PGSB_TEST_MOMENTS"); s != "" {
		var err error
		if moments, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		o := newObservation(t, binDir)
		for i := range moments {
			o.moment(t, commands()[i%len(commands())])
			if t.Failed() {
				break
			}
		}
		o.report(t, moments)
	})
}

// observation is a server with a backend that is observed.
type observation struct {
	server   *pgtest.Server
	backend  *pgx.Conn
	pid      int
	watch    *pgx.Conn
	holder   *pgx.Conn // has locks, in a transaction
	capturer *capture.Capturer

	equal, waiting, moved, empty, levels, unasked int

	kinds map[string]bool // of statements in levels that were equal
}

func newObservation(t *testing.T, binDir string) *observation {
	t.Helper()
	server := pgtest.Lend(t, binDir, pgtest.Options{Conf: []string{"autovacuum = off", "jit = off"}})
	server.Exec(t, loadSQL)
	o := &observation{server: server, backend: server.Connect(t, server.User, "postgres")}
	o.pid = int(o.backend.PgConn().PID())
	o.kinds = make(map[string]bool)
	o.watch = server.Connect(t, server.User, "postgres")
	o.holder = server.Connect(t, server.User, "postgres")
	for _, held := range []string{
		"SELECT pg_advisory_lock(4711)", "BEGIN", "UPDATE held SET txt = 'here' WHERE n = 1", "INSERT INTO held VALUES (2)",
	} {
		if _, err := o.holder.Exec(t.Context(), held); err != nil {
			t.Fatal(err)
		}
	}
	o.capturer = capturer(t)
	const slowVacuum = "SET vacuum_cost_delay = 1; SET vacuum_cost_limit = 1; SET min_parallel_index_scan_size = 0"
	if _, err := o.backend.Exec(t.Context(), slowVacuum); err != nil {
		t.Fatal(err)
	}
	return o
}

// moment sends a command, stops the backend after a random time, captures it, cancels the command at this place, and
// compares.
func (o *observation) moment(t *testing.T, command string) {
	t.Helper()
	if words := strings.Fields(command); words[0] == "VACUUM" {
		if _, err := o.watch.Exec(t.Context(), "UPDATE "+words[len(words)-1]+" SET n = n + 1"); err != nil {
			t.Fatal(err)
		}
	}
	result := o.start(command)
	o.awaitActive(t, result)
	time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
	o.signal(t, syscall.SIGSTOP)
	pgtest.Wait(t, "the backend to stop", func() bool {
		st, err := process.ReadStat(o.pid)
		return err == nil && st.State == 'T'
	})
	tr, err := o.capturer.Capture(t.Context(), process.Target{PID: o.pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
	compared := func() string { return "" }
	if err == nil {
		compared = o.compareActivity(t, tr, command)
	}
	o.signal(t, syscall.SIGINT)
	o.signal(t, syscall.SIGCONT)
	cancelled := <-result
	difference := compared()
	if err != nil {
		t.Fatal(err)
	}
	var pgErr *pgconn.PgError
	if !errors.As(cancelled, &pgErr) || pgErr.Code != "57014" {
		if cancelled == nil {
			o.empty++ // the command had just ended
			return
		}
		t.Fatalf("the command ended with %v", cancelled)
	}
	if difference != "" {
		t.Error(difference)
	}
	o.compare(t, tr, pgErr.Where)
}

// start sends a command. The channel gets the command's final error.
func (o *observation) start(command string) <-chan error {
	result := make(chan error, 1)
	go func() {
		var err error
		if strings.HasSuffix(command, " FROM STDIN") {
			_, err = o.backend.PgConn().CopyFrom(context.Background(), &rows{}, command)
		} else {
			_, err = o.backend.PgConn().Exec(context.Background(), command).ReadAll()
		}
		result <- err
	}()
	return result
}

// rows is endless input for COPY.
type rows struct{ n int }

func (r *rows) Read(p []byte) (int, error) {
	r.n++
	return copy(p, fmt.Sprintf("%d\trow %d\n", r.n, r.n)), nil
}

// awaitActive waits until the server has received the command, or until the command has ended.
func (o *observation) awaitActive(t *testing.T, result <-chan error) {
	t.Helper()
	pgtest.Wait(t, "the command to be received", func() bool {
		var state string
		err := o.watch.QueryRow(t.Context(),
			"SELECT coalesce(state, '') FROM pg_stat_activity WHERE pid = $1", o.pid).Scan(&state)
		if err != nil {
			t.Fatal(err)
		}
		return state == "active" || len(result) > 0
	})
}

func (o *observation) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(o.pid, sig); err != nil {
		t.Fatal(err)
	}
}

// maxAsking bounds the wait for pg_stat_activity. A backend that was stopped while it holds an LWLock also blocks
// other backends that need the lock.
const maxAsking = 3 * time.Second

// compareActivity compares a snapshot with pg_stat_activity, which reads the same shared memory. The function that it
// returns gives the differences. The caller must call it once, when the backend runs again.
func (o *observation) compareActivity(t *testing.T, tr *backtrace.Trace, command string) func() string {
	t.Helper()
	differs := make(chan string, 1)
	go func() { differs <- o.activityDiffers(t.Context(), tr, command) }()
	select {
	case d := <-differs:
		return func() string { return d }
	case <-time.After(maxAsking):
		o.unasked++
		return func() string { <-differs; return "" } // it is of a later time
	}
}

func (o *observation) activityDiffers(ctx context.Context, tr *backtrace.Trace, command string) string {
	var class, event, query string
	err := o.watch.QueryRow(ctx, `SELECT coalesce(wait_event_type, ''), coalesce(wait_event, ''), query
		FROM pg_stat_activity WHERE pid = $1`, o.pid).Scan(&class, &event, &query)
	switch {
	case err != nil:
		return fmt.Sprintf("pg_stat_activity: %v", err)
	case tr.Wait.Class != class || tr.Wait.Event != event:
		return fmt.Sprintf("waits for %q, but pg_stat_activity says %q %q", tr.Wait, class, event)
	case tr.Query != query || query != command || tr.QueryCut:
		return fmt.Sprintf("query %q, but pg_stat_activity says %q", tr.Query, query)
	}
	return ""
}

// interruptible are the wait classes that end at a cancel request. A backend that waits for a file or for an LWLock
// continues. A backend that waits for its client also continues, because it first reads the data that the client has
// already sent.
var interruptible = []string{"Timeout", "Lock", "IPC", "BufferPin"}

// workersEnd is a wait in one of these classes during which interrupts are held (DestroyParallelContext in
// access/transam/parallel.c).
const workersEnd = "BgWorkerShutdown"

// compare compares the levels with the lines of a CONTEXT. They may differ only if the backend was not waiting. A
// backend that runs continues to the next point at which it checks for a cancel request. A backend that waits checks at
// once.
func (o *observation) compare(t *testing.T, tr *backtrace.Trace, where string) {
	t.Helper()
	got, want := o.texts(t, tr), known(where)
	o.levels += len(got)
	same := slices.EqualFunc(got, want, sameLevel)
	waiting := slices.Contains(interruptible, tr.Wait.Class) && tr.Wait.Event != workersEnd
	switch {
	case same:
		o.equal++
		if waiting {
			o.waiting++
		}
		o.note(tr)
	case waiting || !movedOn(got, want):
		t.Errorf("waiting for %q, levels:\n%s\nbut CONTEXT:\n%s", tr.Wait, strings.Join(got, "\n"), strings.Join(want, "\n"))
	default:
		o.moved++
		if testing.Verbose() && os.Getenv("PGSB_TEST_MOVED") != "" {
			t.Logf("moved:\n%s\nCONTEXT:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// note remembers which kinds of statements have been compared.
func (o *observation) note(tr *backtrace.Trace) {
	for i := range tr.Threads[0].Frames {
		for _, l := range tr.Threads[0].Frames[i].Levels {
			if l.Kind == backtrace.PLpgSQL {
				o.kinds[l.Statement] = true
			}
		}
	}
}

// texts returns the texts of the levels in a trace. It checks that each level belongs to a frame of the code that made
// it.
func (o *observation) texts(t *testing.T, tr *backtrace.Trace) []string {
	t.Helper()
	var out []string
	for i := range tr.Threads[0].Frames {
		f := &tr.Threads[0].Frames[i]
		for _, l := range f.Levels {
			out = append(out, l.Text)
			if l.Kind == backtrace.PLpgSQL && (f.Module != "plpgsql.so" ||
				f.Function != "" && !strings.HasPrefix(f.Function, "plpgsql_exec_")) {
				t.Errorf("%q stands at %s of %s", l.Text, f.Function, f.Module)
			}
		}
	}
	return out
}

// known returns the lines of a CONTEXT (the parameter where) that a trace can have. It leaves out the data of a COPY
// and a traceback of Python.
func known(where string) []string {
	prefixes := []string{"PL/pgSQL ", "COPY ", "SQL ", "while ", "PL/Perl ", "PL/Python "}
	var out []string
	for line := range strings.SplitSeq(where, "\n") {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			out = append(out, line)
		}
	}
	return out
}

// sameLevel reports whether a level is equal to a line of a CONTEXT. The line may also have the statement number of an
// SQL function, which is not known before version 18, or the data of a COPY.
func sameLevel(level, line string) bool {
	return level == line || strings.HasPrefix(level, `SQL function "`) && strings.HasPrefix(line, level+" ") ||
		strings.HasPrefix(level, "COPY ") && strings.HasPrefix(line, level+": ")
}

// movedOn reports whether the backend may have moved on between the two reports. After the equal outer levels, both
// must continue in the same function at different statements, or one of them must not have begun its statement.
func movedOn(got, want []string) bool {
	for len(got) > 0 && len(want) > 0 && sameLevel(got[len(got)-1], want[len(want)-1]) {
		got, want = got[:len(got)-1], want[:len(want)-1]
	}
	if len(got) == 0 || len(want) == 0 {
		return true
	}
	function := func(levels []string) string {
		name := levels[len(levels)-1]
		for _, end := range []string{" line ", " during ", " while ", ", line "} {
			name, _, _ = strings.Cut(name, end)
		}
		return name
	}
	a, b := function(got), function(want)
	return a == b || !strings.HasPrefix(a, "PL/pgSQL function ") || !strings.HasPrefix(b, "PL/pgSQL function ")
}

func (o *observation) report(t *testing.T, moments int) {
	t.Helper()
	figure.Printf(t, "%d: %d moments, %d levels: equal to CONTEXT %d (%.1f %%; %d of them waiting), "+
		"moved on before the cancel %d, ended before %d; pg_stat_activity could not be read for %d", o.server.Major, moments,
		o.levels, o.equal, 100*float64(o.equal)/float64(moments), o.waiting, o.moved, o.empty, o.unasked)
	t.Logf("statements in them: %s", strings.Join(slices.Sorted(maps.Keys(o.kinds)), ", "))
	if o.equal < moments/2 || o.waiting < moments/10 {
		t.Error("too few moments could be compared")
	}
}
