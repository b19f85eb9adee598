package capture

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// stepsWork has the statements of the followed backends: each leads through other code of the server.
var stepsWork = []string{
	"SELECT relname, count(*) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid GROUP BY 1 ORDER BY 2, 1 LIMIT 3",
	"DO $$ BEGIN BEGIN PERFORM 1/0; EXCEPTION WHEN OTHERS THEN NULL; END; EXECUTE 'SELECT 1'; END $$",
	"SELECT md5('x'), regexp_replace('abc', 'b+', 'x'), to_char(now(), 'Day'), 2::numeric ^ 100, sha256('x')",
	`SELECT '{"a": [1, {"b": null}]}'::jsonb #> '{a,1}', array_agg(x), to_tsvector('english', 'the wheels')
		FROM generate_series(1, 3) x`,
	`CREATE TEMP TABLE t (x int PRIMARY KEY, y text);
		INSERT INTO t SELECT x, repeat('y', 3000) FROM generate_series(1, 20) x`,
	`UPDATE t SET y = y || x WHERE x > 3; DELETE FROM t WHERE x % 2 = 0;
		SELECT max(x) OVER (ORDER BY y) FROM t; DROP TABLE t`,
	`WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5)
		SELECT * FROM r, LATERAL (SELECT n * 2) l`,
	"SELECT no_such_column FROM pg_class",
	"SET statement_timeout = 100; SELECT pg_sleep(60)",
	`RESET statement_timeout; CREATE TABLE u (x int); COPY (SELECT 1) TO PROGRAM 'cat >/dev/null';
		ANALYZE u; DROP TABLE u`,
}

// TestEveryInstructionOfBackends compares the stack of a backend at each instruction of its work with its real calls.
// The work includes prologues and epilogues, the procedure linkage table, errors (longjmp), and signal handlers.
func TestEveryInstructionOfBackends(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		conn := server.Connect(t, server.User, "postgres")
		s := newStepped(t)
		for _, sql := range stepsWork {
			_ = conn.PgConn().Exec(t.Context(), sql).Close() // so that no later run reads catalogs first
		}
		for _, sql := range stepsWork {
			before := s.taken
			s.through(t, conn, sql)
			t.Logf("%d: %s", s.taken-before, strings.Join(strings.Fields(sql), " "))
		}
		s.tell(t)
	})
}

// through follows a backend that is at rest through a statement.
func (s *stepped) through(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	pid := int(conn.PgConn().PID())
	s.look(t, pid)
	var err error
	s.process, err = attachStepped(pid, func(p *steppedProcess) ([]steppedFrame, error) {
		if stop := s.unwind(t, s.registers(t, p), p.Read, s.space); !ended(stop) {
			return nil, fmt.Errorf("at rest: %v", stop)
		}
		known := make([]steppedFrame, len(s.frames))
		for i, f := range s.frames {
			known[i].PC = f.PC
			if i > 0 {
				known[i].SP = s.frames[i-1].CFA + uint64(s.capturer.arch.CFAToSP)
			}
		}
		return known, nil
	})
	if errors.Is(err, errNotStepped) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = conn.PgConn().Exec(t.Context(), sql).Close()
		close(done)
		_ = syscall.Kill(pid, wakeStepped) // it waits for the next statement
	}()
	s.run(t, stepsWanted(t), done)
	if err := s.process.End(); err != nil {
		t.Fatal(err)
	}
	<-done
}
