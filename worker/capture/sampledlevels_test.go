package capture_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// mixed are loads of sessions that run PL/pgSQL all the time. In each load a C function is called from one line of one
// function only, so the stack shows which line is right. The loads enter and leave functions at the same addresses of the
// stack again and again. SIZE is the size of a text, which decides how long the functions run.
var mixed = []struct {
	name       string
	statements []string          // executed again and again
	lines      map[string]string // by C function
	unproven   bool              // no level may be shown
}{
	{
		"short functions in turn", []string{"SELECT mixed_turns(500)"},
		map[string]string{"md5_text": "mixed_md5() line 5", "sha256_bytea": "mixed_sha() line 7", "numeric_fac": "mixed_fac() line 6"},
		false,
	},
	{
		"short statements in turn", []string{"SELECT mixed_md5()", "SELECT mixed_sha()", "SELECT mixed_fac()"},
		map[string]string{"md5_text": "mixed_md5() line 5", "sha256_bytea": "mixed_sha() line 7", "numeric_fac": "mixed_fac() line 6"},
		false,
	},
	{
		"blocks in turn", []string{
			"DO $$DECLARE s text := repeat('x', SIZE); n int; BEGIN\nFOR i IN 1..3 LOOP n := length(md5(s)); END LOOP; END$$",
			"DO $$DECLARE s text := repeat('x', SIZE); n int; BEGIN\n\n\nFOR i IN 1..3 LOOP n := length(sha256(s::bytea)); END LOOP; END$$",
		},
		map[string]string{"md5_text": "inline_code_block line 2", "sha256_bytea": "inline_code_block line 4"},
		false,
	},
	{
		"blocks inside a function", []string{"SELECT mixed_blocks(200)"},
		map[string]string{"md5_text": "", "sha256_bytea": ""},
		true,
	},
	{
		"functions that end with an error", []string{"SELECT mixed_errors(300)"},
		map[string]string{"md5_text": "mixed_failing(integer) line 3", "sha256_bytea": "mixed_failing(integer) line 4"},
		false,
	},
	{
		"a function replaced in turn", []string{"SELECT mixed_replaced(100)"},
		map[string]string{"md5_text": "mixed_new() line 2", "sha256_bytea": "mixed_new() line 4"},
		false,
	},
}

const mixedSchema = `
CREATE FUNCTION mixed_md5() RETURNS int LANGUAGE plpgsql AS $$
DECLARE s text := repeat('x', SIZE);
	n int;
BEGIN
	n := length(md5(s)); RETURN n;
END $$;
CREATE FUNCTION mixed_sha() RETURNS int LANGUAGE plpgsql AS $$
DECLARE s bytea := repeat('x', SIZE);
	n int;
BEGIN


	n := length(sha256(s)); RETURN n;
END $$;
CREATE FUNCTION mixed_fac() RETURNS int LANGUAGE plpgsql AS $$
DECLARE n int := SIZE / 200;
	s numeric;
BEGIN

	s := factorial(n); RETURN n;
END $$;
CREATE FUNCTION mixed_turns(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP PERFORM mixed_md5(); PERFORM mixed_sha(); PERFORM mixed_fac(); END LOOP;
	RETURN n;
END $$;
CREATE FUNCTION mixed_blocks(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		EXECUTE E'DO $b$DECLARE s text := repeat(''x'', SIZE); n int; BEGIN\nn := length(md5(s)); END$b$';
		EXECUTE E'DO $b$DECLARE s text := repeat(''x'', SIZE); n int; BEGIN\n\n\nn := length(sha256(s::bytea)); END$b$';
	END LOOP;
	RETURN n;
END $$;
CREATE FUNCTION mixed_failing(k int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE s text := repeat('x', SIZE); n int; BEGIN
	IF k % 2 = 0 THEN n := length(md5(s)) / 0; END IF;
	n := length(sha256(s::bytea)) / 0; RETURN n;
END $$;
CREATE FUNCTION mixed_errors(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		BEGIN PERFORM mixed_failing(i); EXCEPTION WHEN division_by_zero THEN NULL; END;
	END LOOP;
	RETURN n;
END $$;
CREATE FUNCTION mixed_replaced(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		EXECUTE E'CREATE OR REPLACE FUNCTION mixed_new() RETURNS int LANGUAGE plpgsql AS $f$DECLARE s text := repeat(''x'', SIZE); n int; BEGIN\n' ||
			E'n := length(md5(s)); RETURN n; END$f$';
		PERFORM mixed_new();
		EXECUTE E'CREATE OR REPLACE FUNCTION mixed_new() RETURNS int LANGUAGE plpgsql AS $f$DECLARE s text := repeat(''x'', SIZE); n int; BEGIN\n\n\n' ||
			E'n := length(sha256(s::bytea)); RETURN n; END$f$';
		PERFORM mixed_new();
	END LOOP;
	RETURN n;
END $$`

// TestSampledLevels compares the levels of processes that are sampled on the CPU with the line that the same stack shows.
func TestSampledLevels(t *testing.T) {
	t.Parallel()
	pgtest.One(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{})
		// Some sessions are seldom in a function when they are sampled. So only the first session must show some
		// levels, unless the test is full.
		wanted, most, size := 2, 60, "100000"
		if pgtest.Full() {
			wanted, most, size = 1000, math.MaxInt, "9000"
		}
		server.Exec(t, strings.ReplaceAll(mixedSchema, "SIZE", size))
		c := capturer(t)
		for i := range mixed {
			load := &mixed[i]
			pid, stop := repeatedly(t, server, strings.ReplaceAll(strings.Join(load.statements, ";\n"), "SIZE", size))
			right, missing, looks := 0, 0, 0
			deadline := time.Now().Add(10 * time.Minute)
			for ; right+b2i(load.unproven)*missing < wanted && (i == 0 || looks < most); looks++ {
				if time.Now().After(deadline) {
					t.Errorf("%s: %d of %d samples show levels", load.name, right, looks)
					break
				}
				seen, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{
					NonStop: true, Deadline: pgtest.Patience,
				})
				if err != nil || seen.Engine != snapshot.EngineRunning {
					continue
				}
				want, ok := expected(seen, load.lines)
				if !ok {
					continue
				}
				switch got := innermostLevel(seen); {
				case got == "" && seen.LevelsMissing != "":
					missing++
				case got != want || load.unproven:
					t.Errorf("%s: %q, want %q\n%s", load.name, got, want, addresses(seen))
				default:
					right++
				}
			}
			stop()
			figure.Printf(t, "%s: %s: %d looks, %d with the right line, %d said to be missing, 0 wrong", binDir, load.name, looks,
				right, missing)
		}
	})
}

// expected returns the line to which the stack of a sample belongs.
func expected(tr *backtrace.Trace, lines map[string]string) (string, bool) {
	i := slices.IndexFunc(tr.Threads[0].Frames, func(f backtrace.Frame) bool { _, ok := lines[f.Function]; return ok })
	if i < 0 {
		return "", false
	}
	return lines[tr.Threads[0].Frames[i].Function], true
}

// innermostLevel returns the function and the line of the innermost level.
func innermostLevel(tr *backtrace.Trace) string {
	for i := range tr.Threads[0].Frames {
		for _, l := range tr.Threads[0].Frames[i].Levels {
			return fmt.Sprintf("%s line %d", l.Function, l.Line)
		}
	}
	return ""
}

// repeatedly executes statements in a session until stop is called. A message has them many times, so that the session is
// busy also if this process waits for a processor.
func repeatedly(t *testing.T, server *pgtest.Server, text string) (pid int, stop func()) {
	t.Helper()
	text = strings.Repeat(text+";\n", 200)
	conn := server.Connect(t, server.User, "postgres")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := conn.PgConn().Exec(ctx, text).ReadAll(); err != nil && ctx.Err() == nil {
				t.Errorf("%.200s: %v", text, err)
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	pid = int(conn.PgConn().PID())
	return pid, func() {
		cancel()
		server.Exec(t, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
		<-done
	}
}
