package capture_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
)

// generatedLoad makes LLVM compile each of its queries, with calls back into the server.
const generatedLoad = `DO $$ BEGIN LOOP
	PERFORM sum(length(md5(x::text)) + x * 2 + y % 7) FROM generated WHERE x % 3 <> 1 AND y % 5 <> 2 AND x + y > 3;
END LOOP; END $$`

// TestGeneratedCode: a stack through code that LLVM made for a query is whole, with the caller of that code, though no
// file has call frame information for it; and with names, where LLVM has registered it.
func TestGeneratedCode(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: not with -short")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
			"jit = on", "jit_above_cost = 0", "jit_inline_above_cost = -1", "max_parallel_workers_per_gather = 0",
		}})
		server.Exec(t, "CREATE TABLE generated AS "+
			"SELECT x, (x * 7919::bigint) % 1000003 AS y FROM generate_series(1, 300000) x")
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
	})
}

// generatedStacks captures a backend at work until enough stacks have gone through generated code.
func generatedStacks(t *testing.T, conn *pgx.Conn, registered bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		_ = conn.PgConn().Exec(ctx, generatedLoad).Close() // ends by cancel only
	}()
	c := capturer(t)
	const enough = 30
	through, exact := 0, 0
	for deadline := time.Now().Add(2 * time.Minute); through < enough && time.Now().Before(deadline); {
		th := take(t, c, int(conn.PgConn().PID()), capture.Options{})
		generated, guessed := false, false
		for i := range th.Frames {
			f := &th.Frames[i]
			guessed = guessed || f.Note == "by frame pointer"
			generated = generated || f.Module == "[anon]" || f.Module == "[jit]"
			named := strings.HasPrefix(f.Function, "evalexpr_") || strings.HasPrefix(f.Function, "deform_")
			if f.Module == "[jit]" && named != registered {
				t.Errorf("a frame in generated code is %q", f.Function)
			}
		}
		if generated {
			through++
		}
		if generated && th.Whole && !guessed {
			exact++
		}
	}
	// A query that ends between one stop and the next takes its code along.
	if through < enough || exact < through*8/10 {
		t.Errorf("of %d stacks through generated code %d are whole and without guesses", through, exact)
	}
	figure.Printf(t, "of %d stacks through generated code %d are whole and without guesses", through, exact)
}
