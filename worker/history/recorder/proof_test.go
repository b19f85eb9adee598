package recorder

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/disktest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestProofOfStalls makes stalls of many kinds on a primary and its standby, many at the same time, with fast rules and the real
// clock. The rules must find each stall once, and must find nothing else. PGSB_TEST_STALLS is the number of rounds. The test prints
// how late each stall was found, but does not check it, because a busy host causes delays.
const (
	proofSets     = 12 // stalls of a kind at the same time, for kinds that are independent of each other
	proofPeriod   = time.Second
	proofAfter    = 2 * time.Second
	proofCooldown = 1500 * time.Millisecond
	proofIdle     = 1200 * time.Millisecond // the time of the rule for idle sessions: before the rule for waits
	proofWait     = 2 * time.Minute         // for a stall that is not found
	proofStarved  = 3 * time.Second         // the time of the rule for a starved worker
	starvedEach   = 5                       // rounds: a starved worker makes all looks late, so nothing else happens meanwhile
	longestChain  = 3
)

// stalled is one stall of the proof.
type stalled struct {
	kind, rule string
	cause      string // of kinds with one cause for the whole server; empty: processes identify the stall
	pids       []int32
	due        time.Time // when the rule's time is over
	standby    bool      // it is on the standby
	release    func()
	void       func() bool // reports whether it turned out to be no stall; nil: it is one

	mu    sync.Mutex
	found []time.Time
	texts []string
	looks int // between due and the first finding
}

// proof has a primary, a standby, and the findings of their recorders.
type proof struct {
	t                *testing.T
	primary, standby *pgtest.Server
	monitor, second  *pgx.Conn // of the primary, and of the standby

	mu    sync.Mutex
	open  []*stalled
	wrong []string
	host  map[string]int       // findings about what other programs did to the host, by rule
	last  map[bool]*rules.Look // by: of the standby
	looks map[bool]int
	late  int // looks that came more than half a period late
}

func fastRules(above int) rules.Config {
	c := rules.Default()
	for i := range c.Rules {
		if r := &c.Rules[i]; r.After > 0 {
			r.After = proofAfter
		}
	}
	c.Rule(rules.IdleBlocks).After = proofIdle
	c.Rule(rules.LWLockWait).After = time.Second
	c.Rule(rules.SameStack).After = 3 * time.Second
	c.Rule(rules.Connections).Above = above
	c.Rule(rules.Starved).After = proofStarved
	c.Cooldown, c.Budget = proofCooldown, 1<<30
	return c
}

func newProof(t *testing.T) *proof {
	t.Helper()
	bin := pgtest.Newest(t)
	conf := []string{
		"autovacuum = off", "max_connections = 200", "max_prepared_transactions = 10", "wal_sender_timeout = 0", "wal_receiver_timeout = 0",
		"checkpoint_timeout = 1h", "max_wal_size = 1GB", "synchronous_commit = local", "synchronous_standby_names = 'nobody'",
		"deadlock_timeout = 1h", "max_locks_per_transaction = 256", "wal_keep_size = 256MB", "log_min_messages = fatal",
	}
	p := &proof{t: t, host: map[string]int{}, last: map[bool]*rules.Look{}, looks: map[bool]int{}}
	p.primary = pgtest.Start(t, bin, pgtest.Options{Conf: append([]string{
		"archive_mode = on", "archive_command = 'test ! -e block'",
	}, conf...)})
	p.standby = pgtest.StartReplica(t, p.primary, pgtest.Options{Conf: conf})
	p.monitor, p.second = p.connect(), p.standby.Connect(t, p.standby.User, "postgres")
	return p
}

func (p *proof) connect() *pgx.Conn { return p.primary.Connect(p.t, p.primary.User, "postgres") }

// record starts the recorders of both servers.
func (p *proof) record(above int) {
	for onStandby, s := range map[bool]*pgtest.Server{false: p.primary, true: p.standby} {
		c, err := cluster.ByDataDir(s.DataDir)
		if err != nil {
			p.t.Fatal(err)
		}
		e := rules.New(fastRules(above))
		r := New(Options{
			Store: store.Options{Dir: filepath.Join(p.t.TempDir(), "state"), MinFree: 1}, DataDir: s.DataDir, Period: proofPeriod,
			Server:    func() (cluster.Cluster, error) { return c, nil },
			TakeStack: takerOf(p.t, s),
			Watch:     func(l *rules.Look) { p.watch(e, l, onStandby) },
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Run(ctx)
		}()
		p.t.Cleanup(func() { cancel(); <-done })
	}
}

// watch compares the findings of a look with the script.
func (p *proof) watch(e *rules.Engine, l *rules.Look, onStandby bool) {
	result := e.Look(l)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.last[onStandby]; before != nil && l.Time.Sub(before.Time) > proofPeriod*3/2 {
		p.late++
	}
	copied := *l
	copied.Rows = slices.Clone(l.Rows)
	p.last[onStandby] = &copied
	p.looks[onStandby]++
	for _, s := range p.open {
		s.mu.Lock()
		if s.standby == onStandby && len(s.found) == 0 && !s.due.IsZero() && l.Time.After(s.due) {
			s.looks++
		}
		s.mu.Unlock()
	}
	for _, f := range result.New {
		s := p.expected(&f, onStandby)
		if s == nil && (f.Rule == rules.Starved || f.Rule == rules.DiskSleep) {
			p.host[f.Rule]++
			p.t.Logf("by the host: %s, standby %v: %s (processes %v)", f.Rule, onStandby, f.Summary, f.Processes)
			continue
		}
		if s == nil {
			p.wrong = append(p.wrong, fmt.Sprintf("%s, standby %v: %s (%s, processes %v)", f.Rule, onStandby, f.Summary, f.Cause, f.Processes))
			continue
		}
		s.mu.Lock()
		s.found = append(s.found, now)
		s.texts = append(s.texts, fmt.Sprintf("%s: %s (%s, processes %v, partial %v)", l.Time.Format("05.000"), f.Summary, f.Cause, f.Processes, l.Partial))
		s.mu.Unlock()
	}
}

// expected returns the stall to which a finding belongs; nil: the script has none.
func (p *proof) expected(f *rules.Finding, onStandby bool) *stalled {
	for _, s := range p.open {
		if s.rule != f.Rule || s.standby != onStandby {
			continue
		}
		if s.cause != "" && (s.cause == f.Cause || strings.HasSuffix(s.cause, " ") && strings.HasPrefix(f.Cause, s.cause)) {
			return s
		}
		if s.cause == "" && slices.ContainsFunc(f.Processes, func(pid int32) bool { return slices.Contains(s.pids, pid) }) {
			return s
		}
	}
	return nil
}

// expect adds a stall before it begins: it may be found before the script knows when it is due.
func (p *proof) expect(s *stalled) *stalled {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = append(p.open, s)
	return s
}

func (s *stalled) isDue(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = at
}

func (s *stalled) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.found)
}

// wantLooks waits for further looks at both servers.
func (p *proof) wantLooks(n int) {
	p.mu.Lock()
	first, second := p.looks[false]+n, p.looks[true]+n
	p.mu.Unlock()
	pgtest.Wait(p.t, "looks", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.looks[false] >= first && p.looks[true] >= second
	})
}

// run executes statements.
func (p *proof) run(conn *pgx.Conn, sql string) {
	p.t.Helper()
	if _, err := conn.PgConn().Exec(p.t.Context(), sql).ReadAll(); err != nil {
		p.t.Errorf("%s: %v", sql, err)
	}
}

// background executes statements, whose error does not count. The result waits for the end.
func (p *proof) background(conn *pgx.Conn, sql string) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = conn.PgConn().Exec(context.Background(), sql).ReadAll()
	}()
	return func() { <-done }
}

// since returns when sessions began to wait for locks, by the server. The script waits until all of them do.
func (p *proof) since(conns []*pgx.Conn) map[int32]time.Time {
	p.t.Helper()
	pids := make([]int32, len(conns))
	for i, c := range conns {
		pids[i] = int32(c.PgConn().PID())
	}
	found := map[int32]time.Time{}
	pgtest.Wait(p.t, "sessions that wait for locks", func() bool {
		rows, err := p.monitor.Query(p.t.Context(), "SELECT pid, min(waitstart) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL "+
			"AND pid = ANY ($1) GROUP BY pid", pids)
		if err != nil {
			p.t.Fatal(err)
		}
		var pid int32
		var at time.Time
		if _, err := pgx.ForEachRow(rows, []any{&pid, &at}, func() error { found[pid] = at; return nil }); err != nil {
			p.t.Fatal(err)
		}
		return len(found) == len(conns)
	})
	return found
}

// chain is a row of sessions: the first holds a lock, and each other one waits for the one before.
type chain struct {
	kind, rule string
	hold, want string // statements; $ is the number of the chain, and # of the session
	idle       bool   // the first is idle in transaction
	conns      []*pgx.Conn
}

func (c *chain) sql(text string, n, session int) string {
	return strings.NewReplacer("$", strconv.Itoa(n), "#", strconv.Itoa(session)).Replace(text)
}

// chains makes the chains of the proof. They are independent of each other.
func (p *proof) chains(sets int) (list []*chain) {
	for range sets {
		list = append(list,
			&chain{kind: "row lock", rule: rules.LockWait, hold: "UPDATE row SET n = 1 WHERE id = $", want: "UPDATE row SET n = 2 WHERE id = $"},
			&chain{kind: "table lock", rule: rules.LockWait, hold: "LOCK TABLE t$", want: "SELECT count(*) FROM t$"},
			&chain{kind: "advisory lock", rule: rules.LockWait, hold: "SELECT pg_advisory_xact_lock($)", want: "SELECT pg_advisory_xact_lock($)"},
			&chain{kind: "idle in transaction", rule: rules.IdleBlocks, idle: true, hold: "UPDATE row SET n = 1 WHERE id = $", want: "UPDATE row SET n = 2 WHERE id = $"},
			&chain{kind: "chain of three", rule: rules.LockWait, hold: "UPDATE row SET n = 1 WHERE id = $ * 1000",
				want: "UPDATE row SET n = 2 WHERE id = $ * 1000 + #; UPDATE row SET n = 2 WHERE id = $ * 1000 + # - 1", conns: make([]*pgx.Conn, longestChain)})
	}
	for i, c := range list {
		if c.conns == nil {
			c.conns = make([]*pgx.Conn, 2)
		}
		for j := range c.conns {
			c.conns[j] = p.connect()
		}
		p.run(p.monitor, c.sql("CREATE TABLE t$ ()", i+1, 0))
	}
	p.run(p.monitor, "CREATE TABLE row AS SELECT id, 0 AS n FROM generate_series(1, 200000) id; CREATE UNIQUE INDEX ON row (id); ANALYZE row")
	if p.t.Failed() {
		p.t.FailNow()
	}
	return list
}

// stall makes the stalls of the chains.
func (p *proof) stall(list []*chain) (stalls []*stalled) {
	for i, c := range list {
		s := &stalled{kind: c.kind, rule: c.rule}
		for _, conn := range c.conns {
			s.pids = append(s.pids, int32(conn.PgConn().PID()))
		}
		stalls = append(stalls, p.expect(s))
		first := c.conns[0]
		p.run(first, "BEGIN;"+c.sql(c.hold, i+1, 0))
		end := func() {}
		if !c.idle {
			wait := p.background(first, "SELECT pg_sleep(100000)")
			end = func() { p.cancel(first); wait() }
		}
		s.release = func() { end(); p.run(first, "ROLLBACK") }
	}
	for level := 1; level < longestChain; level++ {
		var conns []*pgx.Conn
		for i, c := range list {
			if level < len(c.conns) {
				wait, before := p.background(c.conns[level], c.sql("BEGIN;"+c.want+"; ROLLBACK", i+1, level)), stalls[i].release
				stalls[i].release = func() { before(); wait() }
				conns = append(conns, c.conns[level])
			}
		}
		since := p.since(conns)
		for i, c := range list {
			after := proofAfter
			if c.idle {
				after = proofIdle // it was idle before the other session began to wait
			}
			if level == 1 {
				stalls[i].isDue(since[int32(c.conns[1].PgConn().PID())].Add(after))
			}
		}
	}
	return stalls
}

// cancel cancels the statement of a session.
func (p *proof) cancel(conn *pgx.Conn) {
	if err := conn.PgConn().CancelRequest(p.t.Context()); err != nil {
		p.t.Error(err)
	}
}

// proofCounts are the results of a kind.
type proofCounts struct {
	made, once, inTime, missed, twice int
	worst                             time.Duration
	looks                             int // the most after the time was due
}

// TestProofOfStalls makes stalls in rounds.
func TestProofOfStalls(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("PGSB_TEST_STALLS"))
	switch {
	case rounds > 0:
	case pgtest.Full():
		rounds = 30
	default:
		t.Skip("thousands of stalls: PGSB_TEST_STALLS is the number of rounds, of which each has some 65")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to stop processes of the server's user")
	}
	p := newProof(t)
	chains := p.chains(proofSets)
	single := p.singles()
	writer := p.connect()
	spare := make([]*pgx.Conn, 0, 16)
	var connected int
	if err := p.monitor.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").Scan(&connected); err != nil {
		t.Fatal(err)
	}
	const slots, percent = 197, 100
	above := (connected*percent + slots - 1) / slots
	p.record(above)
	p.wantLooks(3)
	counts := map[string]*proofCounts{}
	stopWriting := p.write(writer)
	defer stopWriting()
	began, voids := time.Now(), 0
	for round := range rounds {
		stalls := p.stall(chains)
		var all sync.WaitGroup
		for _, make := range single {
			if s := make(round); s != nil {
				stalls = append(stalls, s)
			}
		}
		{
			s := p.expect(&stalled{kind: "connection slots", rule: rules.Connections, cause: "connections"})
			for (connected+len(spare))*percent <= slots*above {
				conn, err := pgx.Connect(t.Context(), p.primary.DSN(p.primary.User, "postgres"))
				if err != nil {
					t.Fatal(err)
				}
				spare = append(spare, conn)
			}
			s.isDue(time.Now())
			s.release = func() {
				for _, c := range spare {
					_ = c.Close(context.Background())
				}
				spare = spare[:0]
			}
			stalls = append(stalls, s)
		}
		late := time.Now().Add(proofWait)
		missing := func(s *stalled) bool { return s.times() == 0 && (s.void == nil || !s.void()) }
		for slices.ContainsFunc(stalls, missing) && time.Now().Before(late) {
			time.Sleep(20 * time.Millisecond)
		}
		p.wantLooks(2) // an incident that comes twice
		stalls = slices.DeleteFunc(stalls, func(s *stalled) bool {
			void := s.times() == 0 && s.void != nil && s.void()
			if void {
				voids++
				s.release()
			}
			return void
		})
		for _, s := range stalls {
			all.Go(s.release)
		}
		all.Wait()
		p.wantLooks(int(proofCooldown/proofPeriod) + 3)
		if round%starvedEach == starvedEach-1 {
			stalls = append(stalls, p.starve()...)
			p.wantLooks(int(proofCooldown/proofPeriod) + 3)
		}
		p.mu.Lock()
		p.open = nil
		wrong := p.wrong
		p.wrong = nil
		p.mu.Unlock()
		for _, w := range wrong {
			t.Errorf("round %d: an incident without a stall: %s", round, w)
		}
		for _, s := range stalls {
			p.count(counts, s)
		}
		if round%10 == 9 || round == rounds-1 {
			p.print(counts, round+1, time.Since(began))
			t.Logf("%d loops were not on a processor", voids)
		}
		if t.Failed() {
			break
		}
	}
	for kind, c := range counts {
		if c.once != c.made {
			t.Errorf("%s: of %d stalls, %d were found once, %d not and %d several times", kind, c.made, c.once, c.missed, c.twice)
		}
	}
}

func (p *proof) count(counts map[string]*proofCounts, s *stalled) {
	c := counts[s.kind]
	if c == nil {
		c = &proofCounts{}
		counts[s.kind] = c
	}
	c.made++
	switch len(s.found) {
	case 0:
		c.missed++
		p.t.Logf("not found: %s, processes %v, due %s", s.kind, s.pids, s.due)
		return
	case 1:
		c.once++
	default:
		c.twice++
		p.t.Logf("found again: %s, processes %v: %s", s.kind, s.pids, strings.Join(s.texts, "; "))
	}
	delay := s.found[0].Sub(s.due)
	if delay <= proofPeriod+time.Second {
		c.inTime++
	} else {
		p.t.Logf("late: %s by %s, %d looks", s.kind, delay, s.looks)
	}
	c.worst, c.looks = max(c.worst, delay), max(c.looks, s.looks)
}

func (p *proof) print(counts map[string]*proofCounts, rounds int, took time.Duration) {
	var kinds []string
	total := proofCounts{}
	for k, c := range counts {
		kinds = append(kinds, k)
		total.made, total.once, total.inTime = total.made+c.made, total.once+c.once, total.inTime+c.inTime
	}
	slices.Sort(kinds)
	p.mu.Lock()
	late, looks, host := p.late, p.looks[false]+p.looks[true], fmt.Sprint(p.host)
	p.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds in %s: %d stalls, %d found once, %d within a period and a second; %d of %d looks were late; by the host: %s\n",
		rounds, took.Round(time.Second), total.made, total.once, total.inTime, late, looks, host)
	for _, k := range kinds {
		c := counts[k]
		fmt.Fprintf(&b, "%-20s %6d made %6d once %6d in time %3d missed %3d twice, worst %s, %d looks\n", k, c.made, c.once, c.inTime,
			c.missed, c.twice, c.worst.Round(time.Millisecond), c.looks)
	}
	p.t.Log(b.String())
}

// write writes WAL until it is stopped.
func (p *proof) write(conn *pgx.Conn) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				_, _ = conn.Exec(context.Background(), "SELECT pg_logical_emit_message(true, 'x', 'y')")
			}
		}
	}()
	return func() { cancel(); <-done }
}

// singles returns functions that make the stalls of which a server can have one at a time.
func (p *proof) singles() []func(round int) *stalled {
	a, b, c, d, e := p.connect(), p.connect(), p.connect(), p.connect(), p.connect()
	prepared, waiter, reader := p.connect(), p.connect(), p.connect()
	dir := filepath.Join(p.primary.DataDir, "slow")
	if err := os.Mkdir(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	file := disktest.MountSlow(p.t, dir)
	checkpointer := processOf(p.t, p.primary, "checkpointer")
	return []func(int) *stalled{
		func(int) *stalled { return p.lwlock(a, b) },
		func(int) *stalled { return p.commit(c) },
		func(int) *stalled { return p.prepared(prepared, waiter) },
		func(int) *stalled { return p.disk(reader, file) },
		func(int) *stalled { return p.checkpoint(d, checkpointer) },
		func(round int) *stalled {
			if round%2 == 0 {
				return p.replay()
			}
			return p.receiver()
		},
		func(round int) *stalled {
			if round%4 != 0 {
				return nil
			}
			return p.archiver()
		},
		func(round int) *stalled {
			if round%4 != 1 {
				return nil
			}
			return p.loop(e)
		},
	}
}

// lwlock makes a session wait for the lock of postgresql.auto.conf. The holder reads a pipe in place of the file, and is stopped.
func (p *proof) lwlock(holder, waiter *pgx.Conn) *stalled {
	s := p.expect(&stalled{kind: "LWLock", rule: rules.LWLockWait, cause: "LWLock AutoFile"})
	pipe := filepath.Join(p.primary.DataDir, "postgresql.auto.conf")
	_ = os.Remove(pipe)
	uid, gid := p.primary.OSUser()
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Chown(pipe, uid, gid); err != nil {
		p.t.Fatal(err)
	}
	first := p.background(holder, "ALTER SYSTEM SET work_mem = '5MB'")
	var writer *os.File
	pgtest.Wait(p.t, "a reader of the pipe", func() bool {
		fd, err := unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			writer = os.NewFile(uintptr(fd), pipe)
		}
		return err == nil
	})
	pid := int(holder.PgConn().PID())
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	begin := time.Now()
	second := p.background(waiter, "ALTER SYSTEM SET work_mem = '6MB'")
	s.isDue(begin.Add(time.Second))
	s.release = func() {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		_ = writer.Close()
		first()
		second()
	}
	return s
}

// commit makes a commit wait for a standby that does not exist.
func (p *proof) commit(conn *pgx.Conn) *stalled {
	s := p.expect(&stalled{kind: "commit", rule: rules.CommitWait, cause: "standby"})
	p.run(conn, "SET synchronous_commit = on")
	s.isDue(time.Now().Add(proofAfter))
	wait := p.background(conn, "UPDATE row SET n = 3 WHERE id = 199999")
	s.release = func() { p.cancel(conn); wait() }
	return s
}

// disk makes a session read a file that does not arrive.
func (p *proof) disk(conn *pgx.Conn, file *disktest.SlowFile) *stalled {
	pid := int(conn.PgConn().PID())
	s := p.expect(&stalled{kind: "state D", rule: rules.DiskSleep, pids: []int32{int32(pid)}})
	file.Hold()
	wait := p.background(conn, "SELECT pg_read_file('slow/file')")
	pgtest.Wait(p.t, "state D", func() bool {
		st, err := process.ReadStatus(pid)
		return err == nil && st.State == 'D'
	})
	s.isDue(time.Now().Add(proofAfter))
	s.release = func() { file.Release(); wait() }
	return s
}

// starve lets this process, with both recorders, have a thousandth of a processor until the rule for that applies. Both must
// find it when they run again.
func (p *proof) starve() (stalls []*stalled) {
	p.t.Helper()
	for _, onStandby := range []bool{false, true} {
		stalls = append(stalls, p.expect(&stalled{kind: "starved", rule: rules.Starved, cause: "starved", standby: onStandby}))
	}
	// The shell is outside of the group.
	out, err := exec.Command("sh", "-c", `g=/sys/fs/cgroup/cpu/pgtest$PPID; mkdir -p $g && echo 1000000 >$g/cpu.cfs_period_us &&
echo 1000 >$g/cpu.cfs_quota_us && echo $PPID >$g/cgroup.procs && sleep 6; echo -1 >$g/cpu.cfs_quota_us; echo $PPID >$g/../cgroup.procs; rmdir $g`).CombinedOutput()
	if err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
	for _, s := range stalls {
		s.isDue(time.Now())
	}
	late := time.Now().Add(proofWait)
	for slices.ContainsFunc(stalls, func(s *stalled) bool { return s.times() == 0 }) && time.Now().Before(late) {
		time.Sleep(20 * time.Millisecond)
	}
	return stalls
}

// prepared makes a session wait for a prepared transaction.
func (p *proof) prepared(conn, waiter *pgx.Conn) *stalled {
	s := p.expect(&stalled{kind: "prepared transaction", rule: rules.LockWait, cause: "prepared transaction"})
	p.run(conn, "BEGIN; UPDATE row SET n = 4 WHERE id = 199998; PREPARE TRANSACTION 'x'")
	wait := p.background(waiter, "UPDATE row SET n = 5 WHERE id = 199998")
	s.isDue(p.since([]*pgx.Conn{waiter})[int32(waiter.PgConn().PID())].Add(proofAfter))
	s.release = func() { p.run(conn, "ROLLBACK PREPARED 'x'"); wait() }
	return s
}

// checkpoint stops the checkpointer while a session waits for a checkpoint.
func (p *proof) checkpoint(conn *pgx.Conn, pid int) *stalled {
	s := p.expect(&stalled{kind: "checkpoint", rule: rules.Checkpoint, cause: "checkpoint"})
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	s.isDue(time.Now().Add(proofAfter))
	wait := p.background(conn, "CHECKPOINT")
	s.release = func() { _ = syscall.Kill(pid, syscall.SIGCONT); wait() }
	return s
}

// replay pauses replay while more WAL arrives.
func (p *proof) replay() *stalled {
	s := p.expect(&stalled{kind: "replay", rule: rules.Replay, cause: "replay", standby: true})
	p.run(p.second, "SELECT pg_wal_replay_pause()")
	pgtest.Wait(p.t, "replay is paused", func() (paused bool) {
		if err := p.second.QueryRow(p.t.Context(), "SELECT pg_get_wal_replay_pause_state() = 'paused'").Scan(&paused); err != nil {
			p.t.Fatal(err)
		}
		return paused
	})
	s.isDue(time.Now().Add(proofAfter))
	s.release = func() { p.run(p.second, "SELECT pg_wal_replay_resume()") }
	return s
}

// receiver stops the receiver of WAL.
func (p *proof) receiver() *stalled {
	s := p.expect(&stalled{kind: "WAL sender", rule: rules.WALSender, cause: "WAL sender "})
	var pid int
	pgtest.Wait(p.t, "a receiver", func() bool {
		return p.second.QueryRow(p.t.Context(), "SELECT pid FROM pg_stat_wal_receiver").Scan(&pid) == nil
	})
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	s.isDue(time.Now().Add(proofAfter))
	s.release = func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	return s
}

// archiver makes the archiver fail.
func (p *proof) archiver() *stalled {
	s := p.expect(&stalled{kind: "archiver", rule: rules.Archiver, cause: "archiver"})
	block := filepath.Join(p.primary.DataDir, "block")
	if err := os.WriteFile(block, nil, 0o644); err != nil {
		p.t.Fatal(err)
	}
	p.run(p.monitor, "SELECT pg_switch_wal()")
	s.isDue(time.Now().Add(proofAfter))
	s.release = func() {
		_ = os.Remove(block)
		pgtest.Wait(p.t, "the archiver", func() (done bool) { // it waits for a minute after three attempts, or for another file
			p.run(p.monitor, "SELECT pg_logical_emit_message(true, 'x', 'y'); SELECT pg_switch_wal()")
			err := p.monitor.QueryRow(p.t.Context(), "SELECT last_archived_time > coalesce(last_failed_time, '-infinity') FROM pg_stat_archiver").Scan(&done)
			return err == nil && done
		})
	}
	return s
}

// loop makes a session loop in one place. On a busy host it is not on a processor, and no stall.
func (p *proof) loop(conn *pgx.Conn) *stalled {
	s := p.expect(&stalled{kind: "same stack", rule: rules.SameStack, pids: []int32{int32(conn.PgConn().PID())}})
	s.isDue(time.Now().Add(3 * time.Second))
	pid := int(conn.PgConn().PID())
	before, begin := ran(pid), time.Now()
	wait := p.background(conn, "DO $$ DECLARE x int := 0; BEGIN LOOP x := x % 1000 + 1; END LOOP; END $$")
	s.void = func() bool { return time.Since(begin) > 5*time.Second && ran(pid)-before < time.Since(begin)*6/10 }
	s.release = func() { p.cancel(conn); wait() }
	return s
}
