package places

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
)

// TestHiddenProcesses checks a server whose /proc hides other processes (the option hidepid, ProtectProc= of its
// unit). Workers can serve it with a full view, with the same /proc, and without a capability there. Doctor asks the
// server whether it sees the worker.
func TestHiddenProcesses(t *testing.T) {
	t.Parallel()
	selected := figure.Share(t, 2)
	for i, mode := range []string{"0", "1", "2", "4"} {
		if !selected(i) {
			continue
		}
		t.Run("hidepid="+mode, func(t *testing.T) {
			t.Parallel() // they wait most of the time
			each(t, func(t *testing.T, binDir string) {
				s := startElsewhere(t, binDir, "mount -t proc -o hidepid="+mode+" proc /proc; exec "+plainly)
				s.Exec(t, "CREATE EXTENSION pg_stat_backtrace; CREATE ROLE plain LOGIN; "+
					"GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain")
				uid, gid := s.OSUser()
				same := []string{"nsenter", "-m", "-t", strconv.Itoa(s.postmaster)}
				user := []string{
					"setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(gid), "--clear-groups",
				}
				for name, front := range map[string][]string{
					"plain": {"nice", "-n0"}, "same": same, "user": append(same, user...), "capable": append(same,
						append(user, "--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace")...),
				} {
					kill := mode == "2" && name == "plain" // it takes half a minute
					t.Run(name, func(t *testing.T) { s.hidden(t, front, mode != "0", kill) })
				}
			})
		})
	}
}

// TestServerWithoutProc checks that a server without /proc uses the file that the worker touches.
func TestServerWithoutProc(t *testing.T) {
	each(t, func(t *testing.T, binDir string) {
		s := startElsewhere(t, binDir, "exec "+plainly)
		run(t, "nsenter", "-m", "-t", strconv.Itoa(s.postmaster), "mount", "-t", "tmpfs", "none", "/proc")
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
		serveBy(t, exec.Command(program, "worker", "-D", s.dataDir, "user=postgres dbname=postgres"))
		if got := ask(t, s.Connect(t, s.User, "postgres"), sleeper(t, s.Server)); !strings.Contains(got, "PostgresMain") {
			t.Error(got)
		}
	})
}

// hidden serves with a worker that a command starts, requests a stack from SQL, runs doctor, and kills the worker.
func (s *elsewhere) hidden(t *testing.T, front []string, hides, kill bool) {
	where := fmt.Sprintf("host=%s port=%d user=%s dbname=postgres sslmode=disable", s.SocketDir, s.Port, s.User)
	command := func(arguments ...string) *exec.Cmd {
		all := append(append([]string{}, front...), program)
		all = append(all, arguments...)
		return exec.Command(all[0], all[1:]...)
	}
	w := serveBy(t, command("worker", "-D", s.dataDir, where))
	pgtest.Wait(t, "the queue is served", func() bool { return strings.Contains(w.text(), "serving the queue") })
	if told := strings.Contains(w.text(), "has the option hidepid="); told != hides {
		t.Errorf("the log names the option: %v, want %v", told, hides)
	}
	boss, plain := s.Connect(t, s.User, "postgres"), s.Connect(t, "plain", "postgres")
	target := sleeper(t, s.Server)
	if got := ask(t, boss, target); !strings.Contains(got, " in PostgresMain+0x") {
		t.Errorf("a superuser: %s", got)
	}
	own := int(s.Connect(t, "plain", "postgres").PgConn().PID())
	if got := ask(t, plain, own); !strings.Contains(got, " in PostgresMain+0x") {
		t.Errorf("another role: %s", got)
	}
	if got := s.queued(t, boss, target); got != "done" {
		t.Errorf("a queued request is %s", got)
	}
	var id int64 // process 1 is not the server's, and hidepid keeps its files from the server
	if err := boss.QueryRow(t.Context(), "SELECT pg_request_backtrace(1)").Scan(&id); err != nil {
		t.Errorf("a request for another user's process: %v", err)
	}
	report, err := command("doctor", "-D", s.dataDir, where).CombinedOutput()
	if err != nil || !strings.Contains(string(report), "the server knows that the worker runs") {
		t.Errorf("doctor: %v\n%s", err, report)
	}
	if hides && !strings.Contains(string(report), "has the option hidepid=") {
		t.Errorf("doctor does not name the option:\n%s", report)
	}
	if kill {
		s.killed(t, w)
	}
}

// queued makes a request without waiting, and returns its state.
func (s *elsewhere) queued(t *testing.T, c *pgx.Conn, pid int) (state string) {
	t.Helper()
	var id int64
	if err := c.QueryRow(t.Context(), "SELECT pg_request_backtrace($1::int)", pid).Scan(&id); err != nil {
		return err.Error()
	}
	pgtest.Wait(t, "the request is over", func() bool {
		err := c.QueryRow(t.Context(), "SELECT state FROM backtrace.request WHERE id = $1", id).Scan(&state)
		return err != nil || state != "queued"
	})
	return state
}

// TestRestartedServerHasOtherProc checks that a worker notices that its restarted server has another /proc.
func TestRestartedServerHasOtherProc(t *testing.T) {
	each(t, func(t *testing.T, binDir string) {
		s := startElsewhere(t, binDir, plainly+`; mount -t proc -o hidepid=2 proc /proc; exec `+plainly)
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
		serveBy(t, exec.Command(program, "worker", "-D", s.dataDir, "user=postgres dbname=postgres"))
		if got := ask(t, s.Connect(t, s.User, "postgres"), sleeper(t, s.Server)); !strings.Contains(got, "PostgresMain") {
			t.Errorf("before: %s", got)
		}
		before := s.postmaster
		if out, err := s.AsServerUser(exec.Command("kill", "-INT", strconv.Itoa(before))).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		pgtest.Wait(t, "the server is back", func() bool {
			c, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
			if err == nil {
				_ = c.Close(t.Context())
			}
			pid := s.PostmasterPID()
			return err == nil && pid != 0 && pid != before
		})
		s.postmaster = s.findPostmaster(t)
		if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.postmaster)); err != nil ||
			!strings.Contains(string(data), "hidepid=") {
			t.Fatalf("the new server's /proc hides nothing: %v", err)
		}
		boss, other := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		pgtest.Wait(t, "the worker proves its life in another way", func() bool {
			return strings.Contains(ask(t, boss, int(other.PgConn().PID())), "PostgresMain")
		})
	})
}
