package state

import (
	"fmt"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestEqualsActivity compares sessions at rest with pg_stat_activity, field by field.
func TestEqualsActivity(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{})
		c, err := cluster.ByDataDir(s.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{
			"SELECT 1 /* \u00e9\u202e\x1b */", "BEGIN", "BEGIN; SELECT 1/0",
			"SET application_name = 'a b'; SELECT 2", "SET track_activities = off",
		} {
			_ = s.Connect(t, s.User, "postgres").PgConn().Exec(t.Context(), sql).Close()
		}
		conn := s.Connect(t, s.User, "postgres")
		const columns = `SELECT pid, concat_ws('|', backend_type, coalesce(datname, ''), coalesce(usename, ''),
			coalesce(application_name, ''), coalesce(state, ''), coalesce(extract(epoch FROM xact_start)::text, ''),
			coalesce(extract(epoch FROM query_start)::text, ''), coalesce(extract(epoch FROM state_change)::text, ''),
			extract(epoch FROM backend_start)::text, coalesce(wait_event_type, ''), coalesce(wait_event, ''), coalesce(query, ''))
			FROM pg_stat_activity WHERE pid <> pg_backend_pid()`
		report := ""
		pgtest.Wait(t, "the same sessions", func() bool {
			report = ""
			rows, err := conn.Query(t.Context(), columns)
			if err != nil {
				t.Fatal(err)
			}
			want := map[int]string{}
			for rows.Next() {
				var pid int
				var text string
				if err := rows.Scan(&pid, &text); err != nil {
					t.Fatal(err)
				}
				want[pid] = text
			}
			m, err := r.Read(Options{Texts: true})
			if err != nil {
				t.Fatal(err)
			}
			got := map[int]string{}
			for i := range m.Sessions {
				got[m.Sessions[i].PID] = line(&m.Sessions[i])
			}
			for pid, text := range want {
				if got[pid] != text {
					report += fmt.Sprintf("%d:\n got %q\nwant %q\n", pid, got[pid], text)
				}
			}
			return report == "" && len(want) > 8
		})
	})
}

func line(s *moment.Session) string {
	state, query := s.State, s.Query
	xact, start, change := seconds(s.XactStart), seconds(s.QueryStart), seconds(s.StateStart)
	wait, event := "", ""
	if s.Wait != nil {
		wait, event = s.Wait.Type, s.Wait.Event
	}
	return fmt.Sprintf("%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s", s.Type, s.Database, s.User, s.Application, state, xact, start,
		change, seconds(s.Started), wait, event, query)
}

func seconds(t *time.Time) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%d.%06d", t.Unix(), t.Nanosecond()/1000)
}
