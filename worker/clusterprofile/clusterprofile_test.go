package clusterprofile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/bpf/clusterbpf"
)

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

// TestLabelsAreThoseOfTheServer compares the labels of processes that wait with pg_stat_activity.
func TestLabelsAreThoseOfTheServer(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
			"compute_query_id = on", "logging_collector = on", "archive_mode = on", "archive_command = 'true'",
		}})
		server.Exec(t, `CREATE ROLE "Jo-Doe" SUPERUSER LOGIN`)
		server.Exec(t, `CREATE DATABASE "a-b"`)
		other := server.Connect(t, "Jo-Doe", "a-b")
		if _, err := other.Exec(context.Background(), "SET application_name = 'an app'"); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			_, err := other.Exec(ctx, "SELECT pg_sleep(600)")
			done <- err
		}()
		defer func() {
			cancel()
			<-done
		}()
		admin := server.Connect(t, "postgres", "postgres")
		pgtest.Wait(t, "the sleep", func() bool {
			var n int
			err := admin.QueryRow(context.Background(),
				"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&n)
			return err == nil && n == 1
		})
		p, s := collect(context.Background(), t, Options{DataDir: server.DataDir, Mode: Wall, Duration: 500 * time.Millisecond})
		if s.LabelledShare() < 0.99 {
			t.Errorf("%.3f of the stacks have labels", s.LabelledShare())
		}
		loggers := 0
		for _, s := range p.Sample {
			if label(s, LabelBackendType) == "logger" {
				loggers++
			}
		}
		if loggers == 0 {
			t.Error("no sample of the logger, which has no entry in pg_stat_activity")
		}
		rows, err := admin.Query(context.Background(), `SELECT pid, coalesce(backend_type, ''), coalesce(datname, ''),
			coalesce(usename, ''), application_name, coalesce(state, ''), coalesce(query_id, 0)::text,
			coalesce(wait_event_type, ''), coalesce(wait_event, '')
			FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for rows.Next() {
			var pid int
			var kind, database, user, app, state, query, waitType, wait string
			if err := rows.Scan(&pid, &kind, &database, &user, &app, &state, &query, &waitType, &wait); err != nil {
				t.Fatal(err)
			}
			if query == "0" || state != "active" {
				query = ""
			}
			found := false
			for _, s := range p.Sample {
				if label(s, LabelPID) != fmt.Sprint(pid) {
					continue
				}
				for name, want := range map[string]string{
					LabelBackendType: kind, LabelDatabase: database, LabelUser: user, LabelApplication: app,
				} {
					if got := label(s, name); got != want {
						t.Errorf("process %d, %s: %s is %q, want %q", pid, kind, name, got, want)
					}
				}
				found = found || label(s, LabelState) == state && label(s, LabelQueryID) == query &&
					label(s, LabelWaitType) == waitType && label(s, LabelWaitEvent) == wait
			}
			if !found && wait != "WalWriterMain" {
				t.Errorf("process %d, %s: no sample in state %q, query %q, wait %s %s", pid, kind, state, query, waitType, wait)
				for _, s := range p.Sample {
					if label(s, LabelPID) == fmt.Sprint(pid) {
						t.Log(s.Label, s.Value)
					}
				}
			}
			seen++
		}
		if seen < 5 {
			t.Errorf("%d processes", seen)
		}
	})
}
