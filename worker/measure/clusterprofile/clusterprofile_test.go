package clusterprofile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// collect takes a profile. Where this host cannot do it the test is skipped.
func collect(ctx context.Context, t *testing.T, o Options) (*profile.Profile, *Summary) {
	t.Helper()
	p, s, err := Collect(ctx, o)
	if errors.Is(err, clusterbpf.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	if notes := s.Notes(); len(p.Comments) == 0 || !slices.Equal(p.Comments[1:], notes) {
		t.Errorf("the profile says %q, its summary %q", p.Comments, notes)
	}
	t.Logf("%+v", *s)
	return p, s
}

// label returns a label of a sample.
func label(s *profile.Sample, name string) string {
	if len(s.Label[name]) == 0 {
		return ""
	}
	return s.Label[name][0]
}

// TestEndedProcessIsNoSleeper: a process that has ended, and that its parent has not reaped yet, is in no sample.
func TestEndedProcessIsNoSleeper(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, "postgres", "postgres")
	pid := int(conn.PgConn().PID())
	if err := syscall.Kill(server.PostmasterPID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(server.PostmasterPID(), syscall.SIGCONT) }()
	_ = conn.Close(t.Context())
	pgtest.Wait(t, "the session's end", func() bool {
		stat, err := process.ReadStat(pid)
		return err == nil && stat.State == 'Z'
	})
	const took = 300 * time.Millisecond
	p, _ := collect(context.Background(), t, Options{DataDir: server.DataDir, Mode: Wall, Duration: took})
	for _, s := range p.Sample {
		if label(s, LabelPID) == strconv.Itoa(pid) {
			t.Errorf("a sample of process %d, which has ended: %v %v", pid, s.Label, s.Value)
		}
	}
}

// TestNamesAreUTF8 expects that names in another encoding do not make a profile invalid.
func TestNamesAreUTF8(t *testing.T) {
	t.Parallel()
	names := make(map[uint32]string)
	learn(names, 1, []byte("caf\xe9"))
	learn(names, 2, []byte("café"))
	learn(names, 0, []byte("none"))
	learn(names, 3, nil)
	learn(names, 2, []byte("café"))
	if len(names) != 2 || names[1] != "caf\uFFFD" || names[2] != "café" {
		t.Errorf("%+v", names)
	}
}

// TestLabelsAreThoseOfTheServer compares the labels of processes that wait with pg_stat_activity.
func TestLabelsAreThoseOfTheServer(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
			"compute_query_id = on", "logging_collector = on", "archive_mode = on", "archive_command = 'true'",
			"autovacuum_naptime = '1h'",
		}})
		admin := server.Connect(t, "postgres", "postgres")
		sleepAsOther(t, server, admin)
		p, s := collect(context.Background(), t, Options{
			DataDir: server.DataDir, Mode: Wall, Duration: 500 * time.Millisecond,
		})
		if s.Partial+s.Unlabelled > 1 { // there are few stacks, and the server's sessions sleep
			t.Errorf("%.3f of the stacks have labels", s.LabelledShare())
		}
		logger := "logger"
		if server.Major >= 19 {
			logger = "syslogger"
		}
		if !slices.ContainsFunc(p.Sample, func(s *profile.Sample) bool { return label(s, LabelBackendType) == logger }) {
			t.Error("no sample of the logger, which has no entry in pg_stat_activity")
		}
		seen := 0
		for _, a := range activities(t, admin) {
			a.compare(t, p)
			seen++
		}
		if seen < 5 {
			t.Errorf("%d processes", seen)
		}
	})
}

// sleepAsOther has a session of another user in another database sleep until the end of the test.
func sleepAsOther(t *testing.T, server *pgtest.Server, admin *pgx.Conn) {
	t.Helper()
	server.Exec(t, `CREATE ROLE "Jo-Doe" SUPERUSER LOGIN`)
	server.Exec(t, `CREATE DATABASE "a-b"`)
	other := server.Connect(t, "Jo-Doe", "a-b")
	if _, err := other.Exec(context.Background(), "SET application_name = 'an app'"); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		_, _ = other.Exec(ctx, "SELECT pg_sleep(600)")
	}()
	t.Cleanup(func() { cancel(); <-done })
	pgtest.Wait(t, "the sleep", func() bool {
		var n int
		err := admin.QueryRow(context.Background(),
			"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n == 1
	})
}

// activityRow is a row of pg_stat_activity.
type activityRow struct {
	pid                                                          int
	kind, database, user, app, state, query, waitType, waitEvent string
}

// activities reads pg_stat_activity, without the session itself.
func activities(t *testing.T, admin *pgx.Conn) (list []activityRow) {
	t.Helper()
	rows, err := admin.Query(context.Background(), `SELECT pid, coalesce(backend_type, ''), coalesce(datname, ''),
		coalesce(usename, ''), application_name, coalesce(state, ''), coalesce(query_id, 0)::text,
		coalesce(wait_event_type, ''), coalesce(wait_event, '') FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var a activityRow
		err := rows.Scan(&a.pid, &a.kind, &a.database, &a.user, &a.app, &a.state, &a.query, &a.waitType, &a.waitEvent)
		if err != nil {
			t.Fatal(err)
		}
		if a.query == "0" || a.state != "active" {
			a.query = ""
		}
		list = append(list, a)
	}
	return list
}

// compare compares the labels of the process's samples with the row. A process that does several things has to have a
// sample that is as in the row.
func (a *activityRow) compare(t *testing.T, p *profile.Profile) {
	t.Helper()
	found := false
	var all []string
	for _, s := range p.Sample {
		if label(s, LabelPID) != strconv.Itoa(a.pid) {
			continue
		}
		all = append(all, fmt.Sprint(s.Label, s.Value))
		for name, want := range map[string]string{
			LabelBackendType: a.kind, LabelDatabase: a.database, LabelUser: a.user, LabelApplication: a.app,
		} {
			if got := label(s, name); got != want {
				t.Errorf("process %d, %s: %s is %q, want %q", a.pid, a.kind, name, got, want)
			}
		}
		found = found || label(s, LabelState) == a.state && label(s, LabelQueryID) == a.query &&
			label(s, LabelWaitType) == a.waitType && label(s, LabelWaitEvent) == a.waitEvent
	}
	if !found && a.kind != "walwriter" && a.kind != "background writer" { // these may sleep in other ways by now
		t.Errorf("no sample is as %+v:\n%s", *a, strings.Join(all, "\n"))
	}
}

// TestRenamedRoles exchanges the names of two roles with sessions. Labels and filters use the names of the catalog. Without the
// catalog, a role with logins of two names has no name.
func TestRenamedRoles(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	server.Exec(t, "CREATE ROLE swapa LOGIN; CREATE ROLE swapb LOGIN")
	a, b := server.Connect(t, "swapa", "postgres"), server.Connect(t, "swapb", "postgres")
	server.Exec(t, "ALTER ROLE swapa RENAME TO swapc; ALTER ROLE swapb RENAME TO swapa; ALTER ROLE swapc RENAME TO swapb")
	a2 := server.Connect(t, "swapb", "postgres")
	want := map[string]string{}
	for _, conn := range []*pgx.Conn{a, a2} {
		want[strconv.Itoa(int(conn.PgConn().PID()))] = "swapb"
	}
	p, _ := collect(context.Background(), t, Options{
		DataDir: server.DataDir, Mode: OffCPU, Duration: 500 * time.Millisecond, Filter: Filter{Users: []string{"swapb"}},
	})
	got := map[string]string{}
	for _, s := range p.Sample {
		got[label(s, LabelPID)] = label(s, LabelUser)
	}
	if !maps.Equal(got, want) {
		t.Errorf("processes and users %v, want %v; process %d has the former name", got, want, b.PgConn().PID())
	}

	names := make(map[uint32]string)
	for _, name := range []string{"swapa", "swapb", "swapa"} {
		learn(names, 7, []byte(name))
	}
	if got := nameOfOID(names, 7); got != "7" {
		t.Errorf("a role with two logins is %q", got)
	}
}
