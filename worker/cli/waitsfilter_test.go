package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// TestWaitsOfUser expects the waits of one of two sessions, by user and by database, with a method that needs no rights to
// load programs.
func TestWaitsOfUser(t *testing.T) {
	t.Parallel()
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"autovacuum = off"}})
	boss := server.Connect(t, "postgres", "postgres")
	if _, err := boss.Exec(t.Context(), "CREATE ROLE waits_reader LOGIN"); err != nil {
		t.Fatal(err)
	}
	other := server.Connect(t, "waits_reader", "template1")
	for _, c := range []struct {
		flags []string
		want  uint32
	}{
		{[]string{"--user", "waits_reader"}, other.PgConn().PID()},
		{[]string{"--database", "template1"}, other.PgConn().PID()},
		{[]string{"--user", "waits_reader,postgres", "--database", "postgres"}, boss.PgConn().PID()},
	} {
		args := append([]string{"waits", "-D", server.DataDir, "-m", "sampled", "-d", "1s", "-f", "json"}, c.flags...)
		for end := time.Now().Add(5 * time.Minute); ; { // on a busy machine, a second may have no reading
			status, stdout, stderr := run(t, args...)
			var report struct {
				Processes []struct {
					PID uint32 `json:"pid"`
				} `json:"processes"`
				Events []struct {
					Event string `json:"wait_event"`
				} `json:"events"`
			}
			if status != 0 && strings.Contains(stderr, " was seen") && time.Now().Before(end) {
				continue
			}
			if err := json.Unmarshal([]byte(stdout), &report); status != 0 || err != nil {
				t.Fatalf("%v: status %d, %v, %s", c.flags, status, err, stderr)
			}
			if len(report.Processes) == 0 && time.Now().Before(end) {
				continue
			}
			if len(report.Processes) != 1 || report.Processes[0].PID != c.want || len(report.Events) != 1 ||
				report.Events[0].Event != "ClientRead" {
				t.Errorf("%v: %s", c.flags, stdout)
			}
			break
		}
	}
	unseen := `no session of user "missing" was seen; users seen: postgres, waits_reader`
	for _, c := range []struct {
		flags           string
		status          int
		stdout, message string
	}{
		{"--user missing", 1, "", unseen},
		{"--user missing,postgres", 0, "ClientRead", unseen},
		{"--user Postgres", 1, "", `no session of user "Postgres" was seen; "postgres" was: upper and lower case differ`},
		{"--database missing", 1, "", `no session in database "missing" was seen; databases seen: postgres, template1`},
		{"--user waits_reader --database postgres", 1, "", "no session of the selected users was seen in the selected databases"},
		{"--event clientread", 0, "ClientRead", ""},
		{"--event WALSnc", 0, "Not selected: the waits for ", `has no wait event "WALSnc"; did you mean `},
		{"--event WALSnc --format csv", 0, "", "Not selected: the waits for "},
		{"--event PgSleep", 0, "No process waited for a selected event.", ""},
	} {
		args := []string{"waits", "-D", server.DataDir, "-m", "sampled", "-d", "1s"}
		for end := time.Now().Add(5 * time.Minute); ; {
			status, stdout, stderr := run(t, append(args, strings.Fields(c.flags)...)...)
			if status == c.status && strings.Contains(stdout, c.stdout) && strings.Contains(stderr, c.message) {
				break
			}
			// On a busy machine, a second may have no reading.
			if status != c.status && !strings.Contains(stderr, " was seen") || time.Now().After(end) {
				t.Errorf("%s: status %d, %s%s", c.flags, status, stdout, stderr)
				break
			}
		}
	}
}
