package capture_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/pg/state"
)

// utilitySetup makes a function that waits in a row while an advisory lock is held. Commands that evaluate an index on
// it or a constraint wait there.
const utilitySetup = `
CREATE TABLE u (id int PRIMARY KEY, t text);
INSERT INTO u SELECT i, md5(i::text) FROM generate_series(1, 3000) i;
DELETE FROM u WHERE id % 3 = 0;
CREATE FUNCTION stays(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
  'BEGIN IF v = 1300 THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN v; END';
CREATE TABLE copied (id int CHECK (public.stays(id) > 0));
`

// utilityProgress compares what blocked commands report with the views.
func utilityProgress(t *testing.T, server *pgtest.Server, control *pgx.Conn) {
	t.Helper()
	server.Exec(t, utilitySetup)
	c, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := state.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	var rewrites string // the view of commands that rewrite a table
	const newest = "SELECT CASE WHEN to_regclass('pg_stat_progress_repack') IS NULL THEN 'cluster' ELSE 'repack' END"
	if err := control.QueryRow(t.Context(), newest).Scan(&rewrites); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct{ view, sql string }{
		{"create_index", "CREATE INDEX u_f ON u (stays(id))"},
		{"create_index", "CREATE INDEX CONCURRENTLY u_g ON u (t)"},
		{"copy", "COPY copied FROM PROGRAM 'seq 1290 1310'"},
		{"analyze", "ANALYZE u"},
		{rewrites, "CLUSTER u USING u_pkey"},
		{rewrites, "VACUUM FULL u"},
		{"vacuum", "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) u"},
	} {
		t.Run(strings.Fields(one.sql)[0], func(t *testing.T) { compareUtility(t, server, control, reader, one.view, one.sql) })
		if one.view == "create_index" {
			server.Exec(t, "CREATE INDEX IF NOT EXISTS u_f ON u (stays(id))") // the next commands evaluate it
		}
	}
	t.Run("BASE_BACKUP", func(t *testing.T) { compareBaseBackup(t, server, control, reader) })
}

func compareUtility(t *testing.T, server *pgtest.Server, control *pgx.Conn, reader *state.Reader, view, sql string) {
	t.Helper()
	ctx := context.Background()
	session := server.Connect(t, server.User, "postgres")
	// The holder has the lock of the function, is a writer, and pins a page.
	holder := server.Connect(t, server.User, "postgres")
	prepare := "BEGIN; SELECT pg_advisory_xact_lock(1)"
	switch {
	case strings.Contains(sql, "CONCURRENTLY"):
		prepare = "BEGIN; INSERT INTO u VALUES (-1)"
	case strings.HasPrefix(sql, "VACUUM (FREEZE"):
		prepare = "BEGIN; DECLARE c CURSOR FOR SELECT * FROM u; FETCH 1500 FROM c"
	}
	if _, err := holder.PgConn().Exec(ctx, prepare).ReadAll(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := session.PgConn().Exec(ctx, sql).ReadAll()
		done <- err
	}()
	pid := int(session.PgConn().PID())
	failure := ""
	defer func() {
		if failure != "" {
			t.Error(failure)
		}
	}()
	pgtest.Wait(t, "the same progress", func() bool {
		var waits bool
		const waiting = "SELECT wait_event_type IN ('Lock', 'BufferPin', 'Buffer') FROM pg_stat_activity WHERE pid = $1"
		if err := control.QueryRow(ctx, waiting, pid).Scan(&waits); err != nil || !waits {
			failure = fmt.Sprint("it does not wait: ", err)
			return false
		}
		failure = differentProgress(t, control, reader, view, pid)
		return failure == ""
	})
	if _, err := control.Exec(ctx, "SELECT pg_cancel_backend($1)", pid); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := holder.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// differentProgress compares the progress that a reader reports with the columns of a view, which must be the same. It returns the
// differences.
func differentProgress(t *testing.T, control *pgx.Conn, reader *state.Reader, view string, pid int) (failure string) {
	t.Helper()
	query := "SELECT to_jsonb(v) - 'pid' - 'datid' - 'datname' FROM pg_stat_progress_" + view + " v WHERE pid = $1"
	want := map[string]any{}
	if err := control.QueryRow(t.Context(), query, pid).Scan(&want); err != nil {
		return err.Error()
	}
	m, err := reader.Read(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var report *plan.CommandReport
	for i := range m.Sessions {
		if s := &m.Sessions[i]; s.PID == pid {
			report = plan.DescribeCommand(m.Version, s.Progress)
		}
	}
	if report == nil || report.View != view {
		return fmt.Sprintf("the report is %+v", report)
	}
	got := map[string]any{}
	if report.TargetOID != 0 {
		got["relid"] = float64(report.TargetOID)
	}
	for _, c := range report.Columns {
		got[c.Name] = c.Value
		if n, ok := c.Value.(int64); ok {
			got[c.Name] = float64(n)
		}
	}
	for name, value := range want {
		if value != nil && fmt.Sprint(got[name]) != fmt.Sprint(value) { // an oid is a text in JSON
			failure += fmt.Sprintf("%s is %v, want %v\n", name, got[name], value)
		}
	}
	for name := range got {
		if want[name] == nil {
			failure += name + " is not in the view\n"
		}
	}
	if len(want) < 5 {
		failure += fmt.Sprintf("the view has only %v\n", want)
	}
	if failure == "" {
		t.Logf("%s: %v", view, report.Columns)
	}
	return failure
}

// compareBaseBackup reads a base backup in twenty steps. Between them the server waits until the client reads on.
func compareBaseBackup(t *testing.T, server *pgtest.Server, control *pgx.Conn, reader *state.Reader) {
	t.Helper()
	const steps, step = 20, 1 << 20
	conn, err := pgconn.Connect(t.Context(), server.DSN(server.User, "postgres")+" replication=database")
	if err != nil {
		t.Fatal(err)
	}
	pid := int(conn.PID())
	raw, err := conn.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Conn.Close()
	command := "BASE_BACKUP (PROGRESS, CHECKPOINT 'fast')"
	if strings.HasPrefix(raw.ParameterStatuses["server_version"], "14") {
		command = "BASE_BACKUP PROGRESS FAST"
	}
	raw.Frontend.Send(&pgproto3.Query{String: command})
	if err := raw.Frontend.Flush(); err != nil {
		t.Fatal(err)
	}
	for range steps {
		failure := ""
		pgtest.Wait(t, "the same progress of the base backup", func() bool {
			var waits bool
			const waiting = "SELECT wait_event = 'ClientWrite' OR wait_event = 'WalSenderWriteData' FROM pg_stat_activity WHERE pid = $1"
			if err := control.QueryRow(t.Context(), waiting, pid).Scan(&waits); err != nil || !waits {
				failure = fmt.Sprint("it does not wait: ", err)
				return false
			}
			failure = differentProgress(t, control, reader, "basebackup", pid)
			return failure == ""
		})
		if _, err := io.CopyN(io.Discard, raw.Conn, step); err != nil {
			t.Fatal(err)
		}
	}
}
