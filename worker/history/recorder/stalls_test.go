package recorder

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
)

// watched is a recorder whose looks the rules judge. Its clock is the test's own, so that a busy host changes no result.
type watched struct {
	t     *testing.T
	r     *Recorder
	now   time.Time
	looks int
	last  *rules.Look
	found []string
}

func watch(t *testing.T, s *pgtest.Server, c rules.Config, take bool) *watched {
	t.Helper()
	running, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{t: t, now: time.Now()}
	e := rules.New(c)
	o := Options{
		Store: store.Options{Dir: filepath.Join(t.TempDir(), "state"), MinFree: 1}, DataDir: s.DataDir,
		Server: func() (cluster.Cluster, error) { return running, nil },
		Watch: func(l *rules.Look) {
			w.looks++
			w.last = l
			l.Starved = 0
			for _, f := range e.Look(l).New {
				w.found = append(w.found, f.Rule)
				t.Log(f.Rule, f.Cause, f.Processes, f.Summary)
			}
		},
	}
	if take {
		o.TakeStack = takerOf(t, s)
	}
	w.r = New(o)
	return w
}

// sweep looks after a second of the test's clock.
func (w *watched) sweep() {
	w.t.Helper()
	w.after(time.Second)
}

// look looks after a moment of the test's clock. It is for waits, whose number of looks depends on the machine.
func (w *watched) look() {
	w.t.Helper()
	w.after(time.Millisecond)
}

func (w *watched) after(moment time.Duration) {
	w.t.Helper()
	w.now = w.now.Add(moment)
	if err := w.r.Sweep(w.now, 0); err != nil {
		w.t.Fatal(err)
	}
}

// later returns the later time, and at least a moment after the first.
func later(a, b time.Time) time.Time {
	if a = a.Add(time.Millisecond); a.After(b) {
		return a
	}
	return b
}

// query runs a statement in another session until the test ends, or stop is called.
func query(t *testing.T, s *pgtest.Server, sql string) (pid int32, stop func()) {
	t.Helper()
	conn := s.Connect(t, s.User, "postgres")
	pid = int32(conn.PgConn().PID())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = conn.Exec(ctx, sql)
	}()
	return pid, sync.OnceFunc(func() { cancel(); <-done })
}

// processOf returns the id of the server's only process of a type.
func processOf(t *testing.T, s *pgtest.Server, kind string) (pid int) {
	t.Helper()
	conn := s.Connect(t, s.User, "postgres")
	pgtest.Wait(t, kind, func() bool {
		return conn.QueryRow(context.Background(), "SELECT pid FROM pg_stat_activity WHERE backend_type = $1", kind).Scan(&pid) == nil
	})
	_ = conn.Close(context.Background())
	return pid
}

// suspend stops a process of a server until the test ends, or resume is called.
func suspend(t *testing.T, pid int) (resume func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(resume)
	pgtest.Wait(t, "a stopped process", func() bool {
		st, err := process.ReadStatus(pid)
		return err == nil && st.State == 'T'
	})
	return resume
}

// TestSameStackOfServer has a statement that loops in one place, and a statement that works.
func TestSameStackOfServer(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		c := rules.Default()
		c.Rule(rules.SameStack).After = 300 * time.Millisecond
		w := watch(t, s, c, true)
		pid, begin := int32(0), w.now
		look := func() { // the clock is the time that the process was on processors: a busy host changes nothing
			w.now = later(w.now, begin.Add(ran(int(pid))))
			w.r.stacks.credit = time.Hour
			if err := w.r.Sweep(w.now, 0); err != nil {
				t.Fatal(err)
			}
		}
		pid, stop := query(t, s, `DO $$ DECLARE x int := 0; BEGIN LOOP x := x % 1000 + 1; END LOOP; END $$`)
		pgtest.Wait(t, "an incident of a loop", func() bool { look(); return len(w.found) > 0 })
		stop()
		if got := strings.Join(w.found, " "); got != rules.SameStack {
			t.Error(got)
		}
		w.found, begin = nil, w.now
		pid, stop = query(t, s, `DO $$ BEGIN LOOP PERFORM count(*) FROM pg_class WHERE relname ~ '^a.*b'; END LOOP; END $$`)
		defer stop()
		samples := 0
		pgtest.Wait(t, "samples", func() bool { look(); samples += len(w.last.Stacks); return samples >= 30 })
		if len(w.found) > 0 {
			t.Error("a statement that works:", w.found)
		}
	})
}

// TestCheckpointOfServer has a slow checkpoint, a checkpoint that stops, and a request for a checkpoint that does not begin.
func TestCheckpointOfServer(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
			"autovacuum = off", "checkpoint_timeout = 1h", "bgwriter_lru_maxpages = 0", "full_page_writes = off",
		}})
		c := rules.Default()
		c.Rule(rules.Checkpoint).After = 20 * time.Second
		c.Cooldown = 30 * time.Second // of looks at an idle checkpointer, which are fewer than the default takes
		w := watch(t, s, c, false)
		pid := processOf(t, s, "checkpointer")
		s.Exec(t, "CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 8000)")
		begin := "SELECT pg_backup_start('x', false)"
		if s.Major < 15 {
			begin = "SELECT pg_start_backup('x', false, false)"
		}
		_, stop := query(t, s, begin)
		defer stop()
		switches := func() uint64 {
			st, err := process.ReadStatus(pid)
			if err != nil {
				t.Fatal(err)
			}
			return st.VoluntarySwitches + st.InvoluntarySwitches
		}
		pgtest.Wait(t, "a checkpoint", func() bool { w.look(); return w.last.Checkpointer.PID != 0 })
		before := uint64(0)
		for range 30 {
			pgtest.Wait(t, "a step of the checkpointer", func() bool { return switches() != before })
			before = switches()
			w.sweep()
			if w.last.Checkpointer.PID == 0 {
				t.Fatal("the checkpoint has ended")
			}
		}
		if len(w.found) > 0 {
			t.Error("a slow checkpoint:", w.found)
		}
		resume := suspend(t, pid)
		for range 60 {
			w.sweep()
		}
		if got := strings.Join(w.found, " "); got != rules.Checkpoint {
			t.Errorf("a checkpoint that stops: %q", got)
		}
		resume()
		s.Exec(t, "CHECKPOINT") // makes the other one hurry
		stop()
		pgtest.Wait(t, "an idle checkpointer", func() bool { w.look(); return w.last.Checkpointer.PID == 0 })
		w.found = nil
		resume = suspend(t, pid)
		for range 40 {
			w.sweep()
		}
		if len(w.found) > 0 {
			t.Error("a stopped checkpointer without work:", w.found)
		}
		_, stop = query(t, s, "CHECKPOINT")
		pgtest.Wait(t, "a session that waits for it", func() bool { w.look(); return w.last.Checkpointer.PID != 0 })
		for range 60 {
			w.sweep()
		}
		if got := strings.Join(w.found, " "); got != rules.Checkpoint {
			t.Errorf("a checkpoint that does not begin: %q", got)
		}
		resume()
		stop()
	})
}

// quietWriter stops the background writer of a server while it sleeps: it writes WAL by itself, some seconds after sessions have.
func quietWriter(t *testing.T, s *pgtest.Server) {
	t.Helper()
	const kind = "background writer"
	pid, conn := processOf(t, s, kind), s.Connect(t, s.User, "postgres")
	pgtest.Wait(t, "a background writer that sleeps", func() (asleep bool) {
		resume := suspend(t, pid)
		err := conn.QueryRow(t.Context(), "SELECT coalesce(wait_event_type = 'Activity', false) FROM pg_stat_activity WHERE pid = $1", pid).Scan(&asleep)
		if err != nil {
			t.Fatal(err)
		}
		if !asleep {
			resume()
		}
		return asleep
	})
	_ = conn.Close(t.Context())
}

// TestReplicationOfServer has a standby without lag, with replay, with replay paused, and with a stopped receiver.
func TestReplicationOfServer(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		primary := pgtest.Start(t, bin, pgtest.Options{Conf: []string{
			"autovacuum = off", "wal_sender_timeout = 0", "checkpoint_timeout = 1h", "bgwriter_lru_maxpages = 0",
		}})
		standby := pgtest.StartReplica(t, primary, pgtest.Options{})
		c := rules.Default()
		c.Rule(rules.Replay).After, c.Rule(rules.WALSender).After = 20*time.Second, 20*time.Second
		w, sw := watch(t, primary, c, false), watch(t, standby, c, false)
		conn, reader := primary.Connect(t, primary.User, "postgres"), standby.Connect(t, standby.User, "postgres")
		both := func(seconds int, sql string) {
			t.Helper()
			for range seconds {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
				w.sweep()
				sw.sweep()
			}
		}
		quiet := func(what string) {
			t.Helper()
			if len(w.found)+len(sw.found) > 0 {
				t.Error(what, w.found, sw.found)
			}
			w.found, sw.found = nil, nil
		}
		quietWriter(t, primary)
		receiver := processOf(t, standby, "walreceiver")
		const write = "CREATE TEMP TABLE t (n int); DROP TABLE t"
		equal := func() bool {
			w.look()
			sw.look()
			p := &w.last.WAL
			return p.Known && len(p.Senders) == 1 && p.Senders[0].Flush == p.End && sw.last.WAL.Replayed == p.End
		}
		pgtest.Wait(t, "a standby without lag", equal)
		both(40, "SELECT 1")
		quiet("no WAL:")
		for range 40 {
			both(1, write)
			pgtest.Wait(t, "the standby", equal)
		}
		quiet("a standby that follows:")
		for _, sql := range []string{"SELECT pg_wal_replay_pause()", write} {
			c := conn
			if sql != write {
				c = reader
			}
			if _, err := c.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		pgtest.Wait(t, "replay that is paused", func() bool {
			sw.look()
			w.look()
			return sw.last.WAL.Paused && w.last.WAL.Senders[0].Flush == w.last.WAL.End && sw.last.WAL.End == w.last.WAL.End
		})
		w.found, sw.found = nil, nil
		for range 40 {
			sw.sweep()
		}
		quiet("a pause without more WAL:")
		for range 50 {
			both(1, write)
			pgtest.Wait(t, "the receiver", func() bool {
				w.look()
				return w.last.WAL.Senders[0].Flush == w.last.WAL.End
			})
		}
		if got := strings.Join(sw.found, " "); got != rules.Replay || len(w.found) > 0 {
			t.Errorf("a standby that does not replay: %q, and its primary %q", got, w.found)
		}
		w.found, sw.found = nil, nil
		resume := suspend(t, receiver)
		both(50, write)
		if got := strings.Join(w.found, " "); got != rules.WALSender {
			t.Errorf("a receiver that has stopped: %q", got)
		}
		resume()
	})
}

// freeze puts a process into a control group that is frozen: then it is in state D, as if a disk did not answer.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	dir := filepath.Join("/sys/fs/cgroup/freezer", fmt.Sprintf("test-%d", pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("no control group that can be frozen: ", err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0); err != nil {
			t.Error(err)
		}
	}
	thaw = sync.OnceFunc(func() {
		write("freezer.state", "THAWED")
		_ = os.WriteFile("/sys/fs/cgroup/freezer/cgroup.procs", []byte(strconv.Itoa(pid)), 0) // it may have ended
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(thaw)
	write("cgroup.procs", strconv.Itoa(pid))
	write("freezer.state", "FROZEN")
	pgtest.Wait(t, "a frozen process", func() bool {
		st, err := process.ReadStatus(pid)
		return err == nil && st.State == 'D'
	})
	return thaw
}

// TestDiskSleepOfServer has a session in state D, once for the time of the rule and once for less.
func TestDiskSleepOfServer(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off", "fsync = off"}})
		c := rules.Default()
		c.Rule(rules.DiskSleep).After = 2500 * time.Millisecond
		w := watch(t, s, c, false)
		pid, stop := query(t, s, "SELECT count(*) FROM (SELECT generate_series(1, 1000000000000)) x") // writes no file
		defer stop()
		w.sweep()
		found := func() string { return strings.Join(w.found, " ") }
		for _, want := range []string{"", rules.DiskSleep} {
			thaw := freeze(t, int(pid))
			for range 2 { // of a second each
				w.sweep()
			}
			if want != "" { // on a busy machine, the process may get the processor a last time after it is in state D
				pgtest.Wait(t, "a finding", func() bool {
					w.sweep()
					return found() != ""
				})
			}
			thaw()
			pgtest.Wait(t, "a process that runs again", func() bool {
				st, err := process.ReadStatus(int(pid))
				return err == nil && st.State != 'D'
			})
			w.sweep()
			if found() != want {
				t.Errorf("%q, want %q", found(), want)
			}
		}
	})
}
