package authz

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// gate is a Querier that counts, and holds its statements until they are let through.
type gate struct {
	conn   *pgx.Conn
	opened chan error // what comes out instead of an answer, or nil
	asked  atomic.Int64
}

func (g *gate) Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	g.asked.Add(1)
	if err := <-g.opened; err != nil {
		return err
	}
	return f(ctx, g.conn)
}

var errRefused = errors.New("refused")

// TestTogether checks that requests which arrive while a statement runs share the next statement, and each gets its
// own answer. It also checks that cancelled requests are not sent, and that the statements get smaller after a late
// one.
func TestTogether(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := pgtest.Start(t, binDir, pgtest.Options{})
		conn := s.Connect(t, "postgres", "postgres")
		g := &gate{conn: conn, opened: make(chan error)}
		look := &Lookup{Server: g}
		pid := int(conn.PgConn().PID())

		var all sync.WaitGroup
		ask := func(ctx context.Context, pids []int, caller uint32, wanted error) {
			all.Go(func() {
				facts, err := look.LookAll(ctx, pids, caller)
				if !errors.Is(err, wanted) {
					t.Errorf("role %d: %v instead of %v", caller, err, wanted)
				}
				for _, p := range pids {
					if f := facts[p]; wanted == nil && (f.Found != (p > 1) || f.CallerExists != (caller == 10)) {
						t.Errorf("process %d, role %d: %+v", p, caller, f)
					}
				}
			})
		}
		waiting := func(n int) {
			pgtest.Wait(t, "the questions wait", func() bool {
				look.together.mu.Lock()
				defer look.together.mu.Unlock()
				return len(look.together.waiting) == n
			})
		}
		ask(t.Context(), []int{pid}, 10, nil)
		pgtest.Wait(t, "the first question is asked", func() bool { return g.asked.Load() == 1 })
		gone, leave := context.WithCancel(t.Context())
		ask(gone, []int{pid}, 10, context.Canceled)
		waiting(1) // before the others
		const many = 500
		for i := range many {
			ask(t.Context(), []int{pid, 1}, uint32(10+i%2), nil)
		}
		waiting(1 + many)
		leave()
		g.opened <- nil
		g.opened <- &pgconn.PgError{Code: "57014"} // the first 128 of them
		waiting(many - 64)                         // they wait again
		statements := 2
		for left, size := many, 64; left > 0; size = 128 {
			g.opened <- nil
			statements, left = statements+1, left-size
		}
		all.Wait()
		if n := int(g.asked.Load()); n != statements {
			t.Errorf("%d questions took %d statements instead of %d", many, n, statements)
		}

		ask(t.Context(), []int{pid}, 10, errRefused)
		g.opened <- errRefused
		all.Wait()
	})
}
