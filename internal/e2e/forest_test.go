package e2e

import (
	"fmt"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestForest checks pg_get_blocking_backtraces without a PID: a holder that is idle in its transaction, a queue of two
// behind it, a chain, and a prepared transaction.
func TestForest(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{Conf: []string{"max_prepared_transactions=2"}})
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		const forest = `SELECT coalesce(string_agg(concat_ws(' ', level, pid, blocked_by, lock_type, lock_mode, object, state,
			backtrace ~ '^#0 ', wait_age > interval '0', error), E'\n'), '') FROM pg_get_blocking_backtraces()`
		if got := boss.text(t, forest); got != "" {
			t.Fatalf("nobody waits, and %s", got)
		}
		boss.run(t, `CREATE TABLE forest (a int PRIMARY KEY); INSERT INTO forest VALUES (1), (2); CREATE TABLE "Odd" ()`)
		prepared := s.connect(t, s.User, "postgres")
		prepared.run(t, `BEGIN; LOCK "Odd"; PREPARE TRANSACTION 'left'`)
		root, chain := s.connect(t, s.User, "postgres"), s.connect(t, s.User, "postgres")
		root.run(t, "BEGIN; UPDATE forest SET a = 3 WHERE a = 1")
		chain.run(t, "BEGIN; UPDATE forest SET a = 4 WHERE a = 2")
		waiting := chain.later("UPDATE forest SET a = 5 WHERE a = 1")
		s.waits(t, chain.pid(), "transactionid")
		last := s.connect(t, s.User, "postgres")
		behind := last.later("UPDATE forest SET a = 6 WHERE a = 2")
		s.waits(t, last.pid(), "transactionid")
		reader := s.connect(t, s.User, "postgres")
		reads := reader.later(`SELECT FROM "Odd"`)
		s.waits(t, reader.pid(), "relation")
		id := func(c *session) string {
			return boss.text(t, fmt.Sprintf("SELECT transactionid::text FROM pg_locks WHERE pid = %d AND NOT granted", c.pid()))
		}
		want := fmt.Sprintf(`0 0 a prepared transaction
1 %d {0} relation AccessShareLock public."Odd" active t t
0 %d idle in transaction t
1 %d {%d} transactionid ShareLock transaction %s active t t
2 %d {%d} transactionid ShareLock transaction %s active t t`, reader.pid(), root.pid(), chain.pid(), root.pid(), id(chain),
			last.pid(), chain.pid(), id(last))
		if got := boss.text(t, forest); got != want {
			t.Errorf("got\n%s\nnot\n%s", got, want)
		}
		boss.run(t, "ROLLBACK PREPARED 'left'")
		<-reads
		root.run(t, "ROLLBACK")
		<-waiting
		chain.run(t, "ROLLBACK")
		<-behind
	})
}
