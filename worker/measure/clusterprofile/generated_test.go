package clusterprofile

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
)

// TestGeneratedCode profiles a backend that runs a query with JIT. Its stacks through the generated code must reach the
// base of the stack, as without JIT.
func TestGeneratedCode(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
			"jit = on", "jit_above_cost = 0", "max_parallel_workers_per_gather = 0",
		}})
		conn := server.Connect(t, "postgres", "postgres")
		var available bool
		if err := conn.QueryRow(t.Context(), "SELECT pg_jit_available()").Scan(&available); err != nil {
			t.Fatal(err)
		}
		if !available {
			t.Skip("this server was built without LLVM, or its library is not installed")
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan struct{})
		defer func() { cancel(); <-done }()
		go func() {
			defer close(done)
			_ = conn.PgConn().Exec(ctx, "SELECT sum(length((a * b)::text) % (b + 7)) FROM generate_series(1, 1000000) a, "+
				"generate_series(1, 100000) b WHERE a + b > 5").Close() // ends by cancel only
		}()
		pid := strconv.Itoa(int(conn.PgConn().PID()))
		const enough = 20
		through, whole := int64(0), int64(0) // of all profiles: on a busy machine, one has few samples
		for deadline := time.Now().Add(2 * time.Minute); ; {
			p, s := collect(t.Context(), t, Options{DataDir: server.DataDir, Duration: time.Second})
			before := through - whole
			for _, sample := range p.Sample {
				if label(sample, LabelPID) != pid || !hasModule(sample, "[jit]") && !hasModule(sample, "[anon]") {
					continue
				}
				if through += sample.Value[0]; has(sample, "PostgresMain") {
					whole += sample.Value[0]
				}
			}
			cut := strings.Contains(strings.Join(s.Notes(), "\n"), "end in code compiled at run time (JIT)")
			if cut != (s.Generated > 0) || through-whole-before > int64(s.Generated) {
				t.Errorf("%d of %d stacks are whole, and the notes are %q", whole, through, s.Notes())
			}
			// The code of the first stacks may be gone: PostgreSQL compiles in several steps.
			if through >= enough && 100*whole >= 97*through {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("of %d stacks through generated code %d are whole", through, whole)
			}
		}
	})
}

// hasModule reports whether a sample has a frame without a name in a module.
func hasModule(s *profile.Sample, module string) bool {
	for _, l := range s.Location {
		if len(l.Line) > 0 && strings.HasPrefix(l.Line[0].Function.Name, module) {
			return true
		}
	}
	return false
}
