package capture_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// generatedLoad makes LLVM compile each of its queries, with calls back into the server.
const generatedLoad = `DO $$ BEGIN LOOP
	PERFORM sum(length(md5(x::text)) + x * 2 + y % 7 + z) FROM generated WHERE x % 3 <> 1 AND y % 5 <> 2 AND x + y > 3;
END LOOP; END $$`

// patience is the time after which a test of generated code fails.
const patience = 5 * time.Minute

// TestGeneratedCode checks a stack through code that LLVM compiled for a query. It must be complete although no file
// has call frame information for that code, and must have names if LLVM has registered the code.
func TestGeneratedCode(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: not with -short")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
			"jit = on", "jit_above_cost = 0", "jit_inline_above_cost = -1", "max_parallel_workers_per_gather = 0",
		}})
		// Of the many columns the last is needed, so that deforming a row takes long.
		var between strings.Builder
		for i := range 60 {
			fmt.Fprintf(&between, "x AS c%d, ", i)
		}
		server.Exec(t, "CREATE TABLE generated AS SELECT x, (x * 7919::bigint) % 1000003 AS y, "+between.String()+
			"x AS z FROM generate_series(1, 60000) x")
		conn := server.Connect(t, server.User, "postgres")
		var available bool
		if err := conn.QueryRow(t.Context(), "SELECT pg_jit_available()").Scan(&available); err != nil {
			t.Fatal(err)
		}
		if !available {
			t.Skip("this server was built without LLVM, or its library is not installed")
		}
		t.Run("registered", func(t *testing.T) {
			generatedStacks(t, server.Connect(t, server.User, "postgres options='-c jit_debugging_support=on'"), true)
		})
		t.Run("not registered", func(t *testing.T) { generatedStacks(t, conn, false) })
		t.Run("not stopped", func(t *testing.T) {
			generatedNonStop(t, server.Connect(t, server.User, "postgres options='-c jit_debugging_support=on'"))
		})
	})
}

// work runs generatedLoad until the test ends.
func work(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		_ = conn.PgConn().Exec(ctx, generatedLoad).Close() // ends by cancel only
	}()
}

// generatedNonStop captures a busy backend without a stop, one stack after another. The stacks lead through
// its generated code, which the backend may have freed when they are unwound. A stack that ends there has that reason. The frames
// behind that code must be return addresses of the backend in this order. The test finds these by stopping the backend.
func generatedNonStop(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	work(t, conn)
	c := capturer(t)
	target := process.Target{PID: int(conn.PgConn().PID()), UID: -1}
	const enough = 30
	deadline := time.Now().Add(patience)
	seen := behind{frames: make(map[uint64]map[uint64]bool), first: make(map[uint64]bool)}
	check := func(th *backtrace.Thread, of *throughGenerated) {
		i := of.add(t, th)
		if i < 0 {
			return
		}
		for seen.wrong(th.Frames[i+1:]) >= 0 && time.Now().Before(deadline) {
			seen.learn(take(t, c, target.PID, capture.Options{}).Frames)
		}
		if j := seen.wrong(th.Frames[i+1:]); j >= 0 {
			t.Errorf("frame %d has never been seen behind the one before: %+v", i+1+j, th.Frames)
		}
	}
	var captured throughGenerated
	for captured.whole < enough && time.Now().Before(deadline) {
		tr, err := c.Capture(t.Context(), target, capture.Options{
			NonStop: true, Deadline: pgtest.Patience,
		})
		if err != nil || tr.Engine != snapshot.EngineRunning {
			continue // on a busy machine it may be neither asleep nor on the CPU for long enough
		}
		check(&tr.Threads[0], &captured)
	}
	if captured.whole < enough {
		t.Errorf("only %d stacks through generated code reach the end", captured.whole)
	}
	figure.Printf(t, "not stopped: of %d stacks through generated code %d reach the end", captured.all, captured.whole)
}

// throughGenerated counts stacks through generated code.
type throughGenerated struct{ all, whole int }

// add counts a stack. It returns the index of the outermost frame in generated code, or -1 if the stack has no such
// frame or is incomplete.
func (g *throughGenerated) add(t *testing.T, th *backtrace.Thread) int {
	t.Helper()
	last := -1
	for i, f := range th.Frames {
		if f.Module == "[anon]" || f.Module == "[jit]" {
			last = i
		}
	}
	if last < 0 {
		return -1
	}
	g.all++
	if !th.Whole {
		if !th.Generated || last != len(th.Frames)-1 || !strings.HasPrefix(th.Stop, "code compiled at run time") {
			t.Errorf("a stack through generated code ends elsewhere: %+v", th)
		}
		return -1
	}
	g.whole++
	if f := th.Frames[last]; th.Generated || f.Module != "[jit]" || f.Function != "" {
		t.Errorf("generated code is %+v", f)
	}
	return last
}

// behind has return addresses: those seen directly after a frame in generated code (first), and those seen directly
// after each other frame (frames).
type behind struct {
	first  map[uint64]bool
	frames map[uint64]map[uint64]bool
}

func (b behind) learn(frames []backtrace.Frame) {
	for i := range frames[1:] {
		from, to := &frames[i], frames[i+1].Address
		if b.frames[from.Address] == nil {
			b.frames[from.Address] = make(map[uint64]bool)
		}
		b.frames[from.Address][to] = true
		if from.Module == "[jit]" {
			b.first[to] = true
		}
	}
}

// wrong returns the index of the first frame that was never seen after the frame before it, or -1 if there is no such
// frame.
func (b behind) wrong(frames []backtrace.Frame) int {
	if len(frames) == 0 || !b.first[frames[0].Address] {
		return 0
	}
	for i := 1; i < len(frames); i++ {
		if !b.frames[frames[i-1].Address][frames[i].Address] {
			return i
		}
	}
	return -1
}

// generatedStacks captures a backend at work until enough stacks have gone through generated code.
func generatedStacks(t *testing.T, conn *pgx.Conn, registered bool) {
	t.Helper()
	work(t, conn)
	c := capturer(t)
	const enough = 12
	through, exact := 0, 0
	kinds := map[string]int{"evalexpr": 0, "deform": 0}
	// A query that ends between one stop and the next takes its code along, more often so on a busy machine. So the
	// test counts the stacks for which the code was still there.
	all := func() bool { return exact >= enough && (!registered || kinds["evalexpr"] > 0 && kinds["deform"] > 0) }
	for deadline := time.Now().Add(patience); !all() && time.Now().Before(deadline); {
		th := take(t, c, int(conn.PgConn().PID()), capture.Options{})
		generated, guessed := false, false
		for i := range th.Frames {
			f := &th.Frames[i]
			guessed = guessed || f.Note == "by frame pointer"
			generated = generated || f.Module == "[anon]" || f.Module == "[jit]"
			kind, _, _ := strings.Cut(f.Function, "_")
			_, named := kinds[kind]
			// A query may end between two stops. Its code then has no name, also if it was registered.
			if f.Module == "[jit]" && (named && !registered || !named && f.Function != "") {
				t.Errorf("a frame in generated code is %q", f.Function)
			}
			if f.Module == "[jit]" && named {
				kinds[kind]++
			}
		}
		if generated {
			through++
		}
		if generated && th.Whole && !guessed {
			exact++
		}
	}
	if !all() {
		t.Errorf("of %d stacks through generated code %d are whole and without guesses: %v", through, exact, kinds)
	}
	figure.Printf(t, "of %d stacks through generated code %d are whole and without guesses; in them %v", through, exact,
		kinds)
}
