package recorder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/logtest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/locks"
)

// TestIdle has the rule for each kind of session.
func TestIdle(t *testing.T) {
	for _, c := range []struct {
		state, class, event string
		want                bool
	}{
		{"idle", "Client", "ClientRead", true},
		{"idle in transaction", "Client", "ClientRead", false},
		{"idle in transaction (aborted)", "Client", "ClientRead", false},
		{"active", "", "", false},
		{"active", "Activity", "WalSenderMain", true},
		{"", "Activity", "CheckpointerMain", true},
		{"", "Timeout", "CheckpointWriteDelay", false},
		{"", "", "", false},
		{"disabled", "Client", "ClientRead", true},
		{"disabled", "Lock", "relation", false},
		{"disabled", "", "", false},
	} {
		s := moment.Session{State: c.state}
		if c.class != "" {
			s.Wait = &moment.Wait{Type: c.class, Event: c.event}
		}
		if got := idle(&s); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestEnded expects one row for a session that has become idle or has ended, also if another process has its process
// id.
func TestEnded(t *testing.T) {
	start := time.UnixMicro(5)
	r := New(Options{})
	r.before = map[identity]store.Row{}
	for pid := range int32(4) {
		r.before[identity{pid, 5}] = store.Row{PID: pid, Start: 5, State: "active", WaitType: "Lock", BlockedBy: []store.Blocker{{}}}
	}
	other := time.UnixMicro(6)
	now := []moment.Session{
		{ServerPID: 0, Started: &start, State: "active"}, {ServerPID: 1, Started: &start, State: "idle"},
		{ServerPID: 2, Started: &other, State: "active"},
	}
	present := []store.Row{{PID: 0, Start: 5}}
	if rows := r.ended(present, now, []string{"process 3 changed while it was read"}); len(rows) != 1 || rows[0].PID != 1 {
		t.Errorf("%+v, though a process could not be read", rows)
	}
	if rows := r.ended([]store.Row{{PID: 0, Start: 5}, {PID: 1, Start: 5, State: "idle"}}, now, nil); len(rows) != 2 {
		t.Errorf("%+v, though an idle session has a row", rows)
	}
	rows := r.ended(present, now, []string{"query texts"})
	r.remember(rows)
	if len(r.before) != 1 {
		t.Errorf("%d sessions are left", len(r.before))
	}
	got := ""
	for _, row := range rows {
		got += fmt.Sprintf("%d %q %v %s %d;", row.PID, row.State, row.Ended, row.WaitType, len(row.BlockedBy))
	}
	if want := `1 "idle" true  0;2 "" true  0;3 "" true  0;`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestTexts expects no text of a role that is redacted, or may be.
func TestTexts(t *testing.T) {
	r := New(Options{Redact: []string{"a"}})
	all := New(Options{Texts: TextsAll})
	off := New(Options{Texts: TextsOff})
	for _, c := range []struct {
		r    *Recorder
		s    moment.Session
		want string
	}{
		{r, moment.Session{UserOID: 1, User: "b", Query: "SELECT 1"}, "SELECT ?"},
		{r, moment.Session{UserOID: 1, User: "a", Query: "SELECT 1"}, ""},
		{r, moment.Session{UserOID: 1, Query: "SELECT 1"}, ""},
		{r, moment.Session{Type: "autovacuum worker", Query: "autovacuum: VACUUM public.t1"}, "autovacuum: VACUUM public.t1"},
		{all, moment.Session{Query: "SELECT 1"}, "SELECT 1"},
		{off, moment.Session{Query: "SELECT 1"}, ""},
	} {
		if got := c.r.text(&c.s, map[string]string{}); got != c.want {
			t.Errorf("%+v: %q, want %q", c.s, got, c.want)
		}
	}
}

// TestManyBlockers has more holders of a lock than a row has blockers: those with the oldest transactions stay.
func TestManyBlockers(t *testing.T) {
	const holders, softs, without = 40, 5, 3
	begin := time.UnixMicro(1_000_000)
	waiter := moment.Session{ServerPID: 999, State: "active", Wait: &moment.Wait{Type: "Lock", Event: "relation"}}
	m := &moment.Moment{Sessions: []moment.Session{waiter}}
	w := &locks.Wait{PID: 999, Kind: locks.Lock}
	for n := range softs {
		w.Blockers = append(w.Blockers, locks.Blocker{PID: 500 + n})
	}
	for n := range holders {
		s := moment.Session{ServerPID: 1 + n, State: "active"}
		if n >= without {
			at := begin.Add(time.Duration(holders-n/2) * time.Second) // the last ones are oldest, and two are equal
			s.XactStart = &at
		}
		m.Sessions = append(m.Sessions, s)
		w.Blockers = append(w.Blockers, locks.Blocker{PID: s.ServerPID, Hard: true})
	}
	w.Blockers = append(w.Blockers, locks.Blocker{PID: 0, Hard: true}) // a prepared transaction
	rows, incomplete, shortened := New(Options{}).rows(m, map[int]*locks.Wait{999: w})
	var got, want []int32
	for _, b := range rows[0].BlockedBy {
		if got = append(got, b.PID); b.Soft {
			t.Errorf("%+v though not all holders are listed", b)
		}
	}
	want = append(want, 9) // as old as 10
	for pid := int32(11); pid <= holders; pid++ {
		want = append(want, pid)
	}
	if want = append(want, 0); !slices.Equal(got, want) || incomplete != 0 || shortened != 1 {
		t.Errorf("%v, want %v; %d and %d", got, want, incomplete, shortened)
	}
	w.Blockers = w.Blockers[:softs+maxBlockers-2]
	rows, _, shortened = New(Options{}).rows(m, map[int]*locks.Wait{999: w})
	if list := rows[0].BlockedBy; len(list) != maxBlockers || list[0].PID != 1 || !list[maxBlockers-1].Soft || shortened != 0 {
		t.Errorf("%v, %d", list, shortened)
	}
}

// TestSnapshotLeavesNoFiles has a session that works while the snapshot is read.
func TestSnapshotLeavesNoFiles(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		_, stop := query(t, s, "SELECT pg_sleep(1000)")
		defer stop()
		r := New(Options{DataDir: s.DataDir, Server: func() (cluster.Cluster, error) { return cluster.ByDataDir(s.DataDir) }})
		pgtest.Wait(t, "a snapshot with the session", func() bool {
			l, _, err := r.Snapshot(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return len(l.Procs) > 0
		})
		if r.statuses.files != 0 || len(r.statuses.known) != 0 {
			t.Errorf("%d files of %d processes", r.statuses.files, len(r.statuses.known))
		}
	})
}

// TestMeter has sweeps that cost too much for a minute, and then little.
func TestMeter(t *testing.T) {
	m := meter{period: time.Second}
	at := time.Unix(1000, 0)
	run := func(cost time.Duration, long time.Duration) {
		for end := at.Add(long); at.Before(end); at = at.Add(m.period) {
			m.add(at, cost)
		}
	}
	if run(time.Millisecond, 2*time.Minute); m.period != time.Second {
		t.Errorf("%s with cheap sweeps", m.period)
	}
	if run(100*time.Millisecond, 2*time.Minute); m.period != slowPeriod {
		t.Errorf("%s with sweeps of a tenth of a processor", m.period)
	}
	if run(100*time.Millisecond, 3*time.Minute); m.period != slowPeriod {
		t.Errorf("%s while each sweep costs too much", m.period)
	}
	if run(time.Millisecond, 3*time.Minute); m.period != time.Second {
		t.Errorf("%s after the load", m.period)
	}
}

// TestLooksBetweenSweeps has waits whose times are over between two sweeps.
func TestLooksBetweenSweeps(t *testing.T) {
	t.Parallel()
	last := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		period, slow, next, want time.Duration // want 0: the next sweep
	}{
		{10 * time.Second, 0, 0, 0},
		{10 * time.Second, 0, 3 * time.Second, 3 * time.Second},
		{10 * time.Second, 0, time.Millisecond, time.Second}, // not more often than once a second
		{10 * time.Second, 0, 9 * time.Second, 0},            // the sweep is soon
		{10 * time.Second, 0, time.Hour, 0},
		{time.Second, 0, 10 * time.Millisecond, 0},
		{time.Second, 10 * time.Second, 3 * time.Second, 0}, // the sweeps cost too much
	} {
		r := New(Options{Period: c.period, Next: func() time.Duration { return c.next }})
		r.cost.period = max(c.period, c.slow)
		planned := last.Add(r.cost.period)
		want := planned
		if c.want > 0 {
			want = last.Add(c.want)
		}
		if at, only := r.nextLook(last, planned); !at.Equal(want) || only != (c.want > 0) {
			t.Errorf("%+v: %s after the last look, only %v", c, at.Sub(last), only)
		}
	}
	looks := make(chan *rules.Look, 10)
	r := New(Options{
		Store: store.Options{Dir: filepath.Join(t.TempDir(), "state")}, DataDir: t.TempDir(), Period: time.Hour,
		Server: func() (cluster.Cluster, error) { return cluster.Cluster{}, errors.New("no server") },
		Watch: func(l *rules.Look) {
			select {
			case looks <- l:
			default: // the test has enough
			}
		},
		Next: func() time.Duration { return time.Millisecond },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	for range 3 {
		<-looks
	}
	cancel()
	<-done
}

// TestReportsOncePerChange has a store that cannot be opened, a panic, and a store that works. The server does not run.
func TestReportsOncePerChange(t *testing.T) {
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, "global"), 0o700); err != nil {
		t.Fatal(err)
	}
	control := make([]byte, 8192)
	copy(control, "\x01\x02\x03\x04\x05\x06\x07\x08\x14\x05\x00\x00")
	if err := os.WriteFile(filepath.Join(data, "global", "pg_control"), control, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reports []string
	panics := 0
	restore := host.InjectPanic(func(place string) {
		if place != "recorder" || len(reports) == 0 { // the disk has not refused the directory yet
			return
		}
		if panics++; panics <= 2 {
			panic("injected")
		}
	})
	defer restore()
	New(Options{
		Store: store.Options{Dir: dir, MinFree: 1}, DataDir: data, Period: 20 * time.Millisecond,
		Server: func() (cluster.Cluster, error) { return cluster.Cluster{}, cluster.ErrNotRunning },
		Log: logtest.New(func(l logtest.Line) {
			if strings.Contains(l.Error, "the disk has not answered") { // as a slow disk causes at this short period
				return
			}
			text := l.Message
			if l.Error != "" {
				text = "not a directory"
				if strings.Contains(l.Error, "injected") {
					text = "panic"
				}
			}
			reports = append(reports, text)
			switch {
			case text == "panic":
				_ = os.Remove(dir)
			case l.Error == "":
				cancel()
			}
		}),
	}).Run(ctx)
	if got := strings.Join(reports, ", "); got != "not a directory, panic, history is recorded" {
		t.Error(got)
	}
	r, err := store.OpenReader(dir, strconv.FormatUint(uint64(0x0807060504030201), 10))
	if err != nil {
		t.Fatal(err)
	}
	notes := 0
	err = r.Sweeps(t.Context(), time.Now().Add(-time.Minute), time.Now().Add(time.Second), func(i store.SweepInfo) error {
		if strings.Contains(i.Note, errDown.Error()) {
			notes++
		}
		return nil
	})
	if err != nil || notes == 0 {
		t.Errorf("%d sweeps, %v", notes, err)
	}
}

// takerOf returns a function that takes stacks of a server's processes.
func takerOf(t testing.TB, s *pgtest.Server) func(context.Context, int, time.Duration) (*Stack, error) {
	t.Helper()
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, pid int, limit time.Duration) (*Stack, error) {
		return TakeStack(ctx, capturer, c, pid, limit)
	}
}

// BenchmarkSweep records sessions that wait behind one advisory lock. It reports the thread's processor time of a sweep.
func BenchmarkSweep(b *testing.B) {
	for _, n := range []int{20, 100, 1000} {
		for _, kind := range []string{"plain", "rules", "stacks", "new stacks"} {
			benchmarkSweep(b, n, kind)
		}
	}
}

func benchmarkSweep(b *testing.B, n int, kind string) {
	{
		b.Run(fmt.Sprint(n, " ", kind), func(b *testing.B) {
			s := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{Conf: []string{
				fmt.Sprintf("max_connections = %d", n+20), "autovacuum = off", "deadlock_timeout = '1h'", "shared_buffers = 16MB",
			}})
			if _, err := s.Connect(b, "postgres", "postgres").Exec(context.Background(), "SELECT pg_advisory_lock(1)"); err != nil {
				b.Fatal(err)
			}
			for range n {
				conn := s.Connect(b, "postgres", "postgres")
				go func() { _, _ = conn.Exec(context.Background(), "SELECT pg_advisory_lock(1)") }()
			}
			o := Options{
				Store: store.Options{Dir: filepath.Join(b.TempDir(), "state"), MinFree: 1}, DataDir: s.DataDir,
				Server: func() (cluster.Cluster, error) { return cluster.ByDataDir(s.DataDir) },
			}
			if kind != "plain" {
				o.Watch = func(*rules.Look) {}
			}
			if strings.HasSuffix(kind, "stacks") {
				o.TakeStack = takerOf(b, s)
			}
			r := New(o)
			pgtest.Wait(b, "the waiters", func() bool {
				if err := r.Sweep(time.Now(), 0); err != nil && !errors.Is(err, errDown) {
					b.Fatal(err)
				}
				return len(r.before) >= n
			})
			c, err := cluster.ByDataDir(s.DataDir)
			if err != nil {
				b.Fatal(err)
			}
			r.o.Server = func() (cluster.Cluster, error) { return c, nil }
			if r.stacks != nil {
				pgtest.Wait(b, "all stacks", func() bool {
					r.stacks.credit = time.Hour
					return r.Sweep(time.Now(), 0) == nil && len(r.stacks.known) >= n
				})
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			begin, all, taken := threadTime(), processTime(), 0
			for b.Loop() {
				if kind == "new stacks" {
					clear(r.stacks.known)
				}
				if r.stacks != nil {
					r.stacks.credit = time.Hour
				}
				if err := r.Sweep(time.Now(), 0); err != nil {
					b.Fatal(err)
				}
			}
			if r.stacks != nil {
				taken = len(r.stacks.known)
			}
			b.ReportMetric(float64(taken), "stacks")
			b.ReportMetric(float64((processTime()-all).Microseconds())/float64(b.N), "all-cpu-us/op")
			b.ReportMetric(float64((threadTime()-begin).Microseconds())/float64(b.N), "cpu-us/op")
			b.ReportMetric(float64(len(r.before)), "rows")
			s.Stop("immediate")
		})
	}
}

// TestStoppedWorkerIsNotStarved has a sweep that is late by an hour, although no thread has waited for a processor for so long: the
// worker was stopped, and the host is not overloaded.
func TestStoppedWorkerIsNotStarved(t *testing.T) {
	r := New(Options{})
	r.starved(0)
	if got := r.starved(time.Hour); got > time.Minute { // a wait for a processor that began before may have ended now
		t.Errorf("starved for %s", got)
	}
	r.stopped = time.Hour // the worker was in another control group: nothing is known about quotas
	if got := r.starved(time.Hour); got != time.Hour {
		t.Errorf("starved for %s", got)
	}
}

// TestRestingSessionHasPhrase: the recorder takes no stack of a session that waits for its client, but the row has a phrase.
func TestRestingSessionHasPhrase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state, wait string
		want        bool
	}{
		{"idle in transaction", "ClientRead", true}, {"idle in transaction (aborted)", "ClientRead", true}, {"idle", "ClientRead", true},
		{"active", "ClientRead", false}, {"idle in transaction", "ClientWrite", false}, {"idle in transaction", "", false},
	} {
		s := moment.Session{Type: "client backend", State: c.state, Wait: &moment.Wait{Type: "Client", Event: c.wait}}
		if c.wait == "" {
			s.Wait = nil
		}
		row := rowOf(&s)
		if got := row.PhraseKey == "read-command" && row.Phrase == "waits for the next statement of the client"; got != c.want {
			t.Errorf("%s, %s: phrase %q", c.state, c.wait, row.Phrase)
		}
	}
}
