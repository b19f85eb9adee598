package stackoracle

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
)

// Queries that LLVM compiles once and that never end. One is busy in expressions that call back into the server, and
// one in deforming tuples. One contains a function that runs such a query itself.
const (
	generatedSchema = `
	CREATE TABLE generated AS SELECT x, (x * 7919::bigint) % 1000003 AS y FROM generate_series(1, 10000) x;
	DO $$ BEGIN EXECUTE 'CREATE TABLE wide AS SELECT ' ||
		(SELECT string_agg(format('CASE WHEN g %% %s = 0 THEN NULL ELSE g::text END AS c%s', i + 7, i), ', ')
			FROM generate_series(1, 80) i) || ' FROM generate_series(1, 5000) g'; END $$;
	CREATE FUNCTION generated_inner(n int) RETURNS bigint LANGUAGE plpgsql AS $$
	BEGIN RETURN (SELECT sum((SELECT sum(length(md5(x::text)) + x % n) FROM generated WHERE x + g <> 7))
		FROM generate_series(1, 1000000000) g); END $$;
	ANALYZE generated, wide`
	generatedExpressions = `SELECT sum((SELECT sum(length(md5(x::text)) + x * 2 + y % 7) FROM generated
		WHERE x % 3 <> 1 AND y % 5 <> 2 AND x + y > g)) FROM generate_series(1, 1000000) g`
	generatedDeforming = `SELECT sum((SELECT count(*) FROM wide WHERE c80 > '3' AND c79 < c78 AND g > 0))
		FROM generate_series(1, 1000000) g`
	generatedNested = `SELECT sum(generated_inner(x)) FROM generated WHERE x < 3 AND y <> 1`
)

// TestGenerated stops a backend at random moments in code that LLVM generated for its query. If LLVM has registered
// the code with debuggers, gdb knows its frames and names, and both must be equal.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: not with -short")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
			"jit = on", "jit_above_cost = 0", "max_parallel_workers_per_gather = 0", "autovacuum = off",
		}})
		var available bool
		conn := server.Connect(t, server.User, "postgres")
		if err := conn.QueryRow(t.Context(), "SELECT pg_jit_available()").Scan(&available); err != nil {
			t.Fatal(err)
		}
		if !available {
			t.Skip("this server was built without LLVM, or its library is not installed")
		}
		server.Exec(t, generatedSchema)
		const plain = "-c jit_inline_above_cost=-1 -c jit_optimize_above_cost=-1"
		const thorough = "-c jit_inline_above_cost=0 -c jit_optimize_above_cost=0"
		for _, kind := range []struct {
			name, options string
			registered    bool // gdb knows the code
			often         bool // only where each busy process is stopped often
		}{
			{"registered", "-c jit_debugging_support=on " + plain, true, true},
			{"inlined and optimized", "-c jit_debugging_support=on " + thorough, true, false},
			{"not registered", thorough, false, false},
		} {
			if kind.often && randomStops(t) <= 10 {
				continue
			}
			t.Run(kind.name, func(t *testing.T) { generatedCode(t, server, kind.options, kind.registered) })
		}
	})
}

func generatedCode(t *testing.T, server *pgtest.Server, options string, registered bool) {
	t.Helper()
	seen := map[string]int{}
	name := "compiled query"
	if !registered {
		name = "compiled query, unknown to gdb"
	}
	for _, s := range []struct{ name, sql, function string }{
		{"expressions", generatedExpressions, "evalexpr"},
		{"deforming", generatedDeforming, "deform"},
		{"nested", generatedNested, "evalexpr"},
	} {
		if !registered && s.function == "evalexpr" && s.name != "nested" && randomStops(t) <= 10 {
			continue // a nested call is an expression too
		}
		t.Run(s.name, func(t *testing.T) {
			if !registered {
				s.function = "[jit]"
			}
			for kind, n := range generatedMoments(t, name, work(t, server, options, s.sql), s.function, registered) {
				seen[kind] += n
			}
		})
	}
	figure.Printf(t, "frames in generated code, by kind: %v", seen)
}

// generatedMoments compares a backend's stack at moments in a generated function of a kind. It counts the kinds of
// all frames in generated code.
func generatedMoments(t *testing.T, name string, backend int, function string, registered bool) map[string]int {
	t.Helper()
	const (
		compiled = 1_000_000_000 // ns on the CPU
		perRound = 1000          // stops
	)
	wait(t, "the query to be compiled", func() bool { return ran(backend) > compiled })
	rounds := (randomStops(t) + 9) / 10
	seen := map[string]int{}
	thaw := func() {}
	t.Cleanup(func() { thaw() })
	for stops := perRound * rounds; rounds > 0 && stops > 0; stops-- {
		runOn(t, backend, thaw)
		var ok bool
		if thaw, ok = freeze(t, backend); !ok {
			t.Fatal("the backend has ended")
		}
		ours := takeOurs(t, []subject{{pid: backend}})[backend]
		kinds := generatedKinds(t, ours[backend])
		if !slices.Contains(kinds, function) {
			continue // it is elsewhere
		}
		for _, kind := range kinds {
			seen[kind]++
		}
		rounds--
		compare(t, subject{name: name, pid: backend, noGDB: !registered && randomStops(t) <= 10})
		if registered {
			sameNames(t, ours[backend], takeGDB(t, backend)[backend])
		}
	}
	if rounds > 0 {
		t.Errorf("%d stops in %s are missing", rounds, function)
	}
	return seen
}

// generatedKinds returns the prefixes of the names of frames in generated code: evalexpr, deform. It is empty without
// names.
func generatedKinds(t *testing.T, s *stack) (kinds []string) {
	t.Helper()
	for level, function := range s.names {
		switch s.modules[level] {
		case "[jit]":
			kind, _, _ := strings.Cut(function, "_")
			kinds = append(kinds, kind)
		case "[anon]":
			t.Errorf("frame %d lies in code of which nothing is known\n%s", level, dump(stacks{0: s}))
		}
	}
	return kinds
}

// sameNames compares the names of generated functions with gdb's.
func sameNames(t *testing.T, ours, theirs *stack) {
	t.Helper()
	if theirs == nil {
		t.Fatal("gdb has no stack")
	}
	for i, name := range ours.names {
		if ours.modules[i] == "[jit]" && (i >= len(theirs.names) || theirs.names[i] != name) {
			t.Errorf("frame %d is %q, but gdb says otherwise\n%s", i, name, beside(ours, theirs, gdb, i))
		}
	}
}

// work makes a backend execute an endless statement, and returns its process id.
func work(t *testing.T, server *pgtest.Server, options, statement string) int {
	t.Helper()
	conn := server.Connect(t, server.User, "postgres options='"+options+"'") // it is the end of a connection string
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		_ = conn.PgConn().Exec(ctx, statement).Close() // ends by cancel only
	}()
	return int(conn.PgConn().PID())
}
