package incident

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
)

// scene is a server with a recorder, whose looks go to rules.
type scene struct {
	*pgtest.Server

	t        *testing.T
	c        cluster.Cluster
	r        *recorder.Recorder
	e        *rules.Engine
	found    []rules.Finding
	look     *rules.Look
	dir      string
	capturer *capture.Capturer
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, dir: filepath.Join(t.TempDir(), "state")}
	s.Server = pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{
		"autovacuum = off", "max_connections = 15", "deadlock_timeout = '1h'", "shared_buffers = 16MB",
	}})
	var err error
	if s.c, err = cluster.ByDataDir(s.DataDir); err != nil {
		t.Fatal(err)
	}
	if s.capturer, err = capture.New(capture.Config{}); err != nil {
		t.Fatal(err)
	}
	s.r = recorder.New(recorder.Options{
		Store: store.Options{Dir: s.dir, MinFree: 1}, DataDir: s.DataDir, Server: func() (cluster.Cluster, error) { return s.c, nil },
		TakeStack: func(ctx context.Context, pid int, limit time.Duration) (*recorder.Stack, error) {
			return recorder.TakeStack(ctx, s.capturer, s.c, pid, limit)
		},
		Watch: func(l *rules.Look) {
			s.look = l
			s.found = append(s.found, s.e.Look(l).New...)
		},
	})
	return s
}

// only switches all rules off but one, whose time is short.
func (s *scene) only(name string) {
	c := rules.Default()
	for i := range c.Rules {
		c.Rules[i].Off = c.Rules[i].Name != name
		if c.Rules[i].After > 0 {
			c.Rules[i].After = 300 * time.Millisecond
		}
	}
	s.e, s.found = rules.New(c), nil
}

func (s *scene) sweep() {
	s.t.Helper()
	if err := s.r.Sweep(time.Now(), 0); err != nil {
		s.t.Fatal(err)
	}
}

// expect sweeps until the rule fires, and some more sweeps, in which it must not fire again.
func (s *scene) expect(name string) rules.Finding {
	s.t.Helper()
	pgtest.Wait(s.t, "the rule "+name, func() bool {
		s.sweep()
		return len(s.found) > 0
	})
	for range 5 {
		s.sweep()
	}
	if len(s.found) != 1 || s.found[0].Rule != name {
		s.t.Fatalf("%+v, want one finding of %s", s.found, name)
	}
	return s.found[0]
}

// run starts a statement that waits, in a new session.
func (s *scene) run(sql string) (*pgx.Conn, chan error) {
	s.t.Helper()
	conn := s.Connect(s.t, s.User, "postgres")
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
		done <- err
	}()
	return conn, done
}

// TestStalls has a stall for each rule that a script can cause, and the same sessions without a stall.
func TestStalls(t *testing.T) {
	s := newScene(t)
	ctx := t.Context()
	s.Exec(t, "CREATE TABLE \"t<script>\" AS SELECT 1 AS n; CREATE ROLE \"<b>evil\" SUPERUSER LOGIN")
	must := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	holder := s.Connect(t, "<b>evil", "postgres")
	must(holder, "SET application_name = '</script><img src=x onerror=alert(1)>'; BEGIN; UPDATE \"t<script>\" SET n = 2")

	// no stall: a transaction that is idle and blocks no other
	s.e = rules.New(rules.Default())
	for _, name := range []string{rules.LockWait, rules.IdleBlocks, rules.CommitWait, rules.Connections, rules.LWLockWait, rules.DiskSleep} {
		s.only(name)
		for range 3 {
			s.sweep()
		}
		if len(s.found) != 0 {
			t.Fatalf("%+v without a stall", s.found)
		}
	}

	waiter, done := s.run("UPDATE \"t<script>\" SET n = 3 WHERE n < 4711")
	s.only(rules.LockWait)
	f := s.expect(rules.LockWait)
	if f.Root != int32(holder.PgConn().PID()) || len(f.Processes) != 2 || f.Processes[1] != int32(waiter.PgConn().PID()) {
		t.Errorf("%+v", f)
	}
	pgtest.Wait(t, "a stack in the history", func() bool {
		s.sweep()
		return s.recorded(func(r *store.Row) bool { return r.PID == f.Processes[1] && r.Stack != 0 && r.Phrase != "" })
	})
	link, err := cluster.NewConn(cluster.ConnOptions{
		ConnString: s.DSN(s.User, "postgres"), Fallback: &cluster.Fallback{ConnString: "replication=database", Check: s.c.Verify},
	})
	if err != nil {
		t.Fatal(err)
	}
	src := Source{Server: s.c, StateDir: s.dir, Capturer: s.capturer, Identify: link.Identify, Program: "test"}
	var i *Incident
	pgtest.Wait(t, "an incident that no limit has cut", func() bool {
		i = Collect(ctx, src, f, s.look)
		return !late(i)
	})
	s.checkIncident(i, f)
	s.checkProof(&i.Plans[0])
	if i.WAL == nil || i.Server.Position == "" || i.Server.Position != i.WAL.End {
		t.Errorf("position %q by IDENTIFY_SYSTEM, %+v in memory, missing %q", i.Server.Position, i.WAL, i.Missing)
	}
	if clean, _ := Anonymous(i); clean.Server.Position != i.Server.Position {
		t.Errorf("the bundle has the position %q", clean.Server.Position)
	}

	s.checkProfiles(f)

	s.only(rules.IdleBlocks)
	if f := s.expect(rules.IdleBlocks); f.Root != int32(holder.PgConn().PID()) {
		t.Errorf("%+v", f)
	}
	must(holder, "ROLLBACK")
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	s.RequireStandby(t, "none", "on")
	_, done = s.run("UPDATE \"t<script>\" SET n = 5")
	s.only(rules.CommitWait)
	s.expect(rules.CommitWait)
	s.Exec(t, "ALTER SYSTEM RESET synchronous_standby_names")
	s.Exec(t, "SELECT pg_reload_conf()")
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	s.only(rules.Connections)
	for range 12 { // 15 without those of superusers
		conn, err := pgx.Connect(ctx, s.DSN(s.User, "postgres"))
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	s.expect(rules.Connections)
}

// late reports whether a part of an incident is missing because of a time limit, which a busy machine or a slow disk causes, or
// whether the background writer has written WAL between the two readings of the position.
func late(i *Incident) bool {
	texts := slices.Clone(i.Missing)
	for _, p := range i.Stacks {
		texts = append(texts, p.Error)
	}
	for _, p := range i.Plans {
		texts = append(texts, p.Error)
	}
	for _, p := range i.Memory {
		texts = append(texts, p.Error)
	}
	return i.WAL != nil && i.Server.Position != i.WAL.End || slices.ContainsFunc(texts, func(text string) bool {
		return strings.Contains(text, context.DeadlineExceeded.Error()) || strings.Contains(text, "only ") ||
			strings.Contains(text, "changed while they were read")
	})
}

// recorded reports whether the history has such a row.
func (s *scene) recorded(want func(*store.Row) bool) (found bool) {
	s.t.Helper()
	control, err := cluster.ReadControl(s.DataDir)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := store.OpenReader(s.dir, control.ID())
	if err != nil {
		s.t.Fatal(err)
	}
	err = r.Rows(s.t.Context(), time.Now().Add(-time.Hour), time.Now().Add(time.Minute), func(row *store.Row) error {
		found = found || want(row)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

// checkProof expects that an incident says whether the layout of a plan is proven, and has no other fields than the proven ones.
func (s *scene) checkProof(p *ProcessPlan) {
	s.t.Helper()
	if p.Proven || p.unproven() == "" || p.Statements[0].Cost == nil {
		s.t.Errorf("without a proof: %+v", p)
	}
	src := &Source{Server: s.c, Capturer: s.capturer, Proof: func(string, int) *plan.Proof { return &plan.Proof{} }}
	q := ProcessPlan{PID: p.PID}
	if err := q.read(s.t.Context(), src); err != nil {
		s.t.Fatal(err)
	}
	if !q.Proven || q.unproven() != "" || len(q.Statements) != 1 || q.Statements[0].Cost != nil || q.Statements[0].Running {
		s.t.Errorf("with a proof of nothing: %+v", q)
	}
}

// checkIncident expects all parts, in both files, and no markup from names.
func (s *scene) checkIncident(i *Incident, f rules.Finding) {
	if len(i.Memory) != maxMemory || i.Memory[0].Anonymous == 0 || i.Memory[0].Contexts == 0 {
		s.t.Errorf("memory: %+v", i.Memory)
	}
	if len(i.Plans) == 0 || len(i.Plans[0].Statements) == 0 || i.Plans[0].Statements[0].Type != "ModifyTable" ||
		!strings.HasPrefix(i.Plans[0].Statements[0].Title, "Update on ") {
		s.t.Errorf("plans: %+v", i.Plans)
	}
	if i.WAL == nil || i.WAL.Error != "" || i.WAL.End == "" || i.WAL.Checkpoint == "" || i.WAL.Recovery {
		s.t.Errorf("WAL: %+v", i.WAL)
	}
	s.t.Helper()
	d := Dir{Path: DirOf(s.dir, i.Server.SystemID), Keep: 3, Size: 1 << 30}
	path, err := d.Write(i)
	if err != nil {
		s.t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, bad := range []string{"<script", "<img", "<b>evil", "4711", "onerror=alert(1)>"} {
		if strings.Contains(string(page), bad) {
			s.t.Errorf("%q is in the page", bad)
		}
	}
	for _, want := range []string{"&lt;b&gt;evil", "ProcSleep", "idle in transaction", "max_connections", html.EscapeString(i.Headline())} {
		if !strings.Contains(string(page), want) {
			s.t.Errorf("%q is not in the page", want)
		}
	}
	read, err := d.Read(i.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(read.Forest) != 1 || read.Forest[0].PID != f.Root || len(read.Forest[0].Blocked) != 1 || len(read.Stacks) < 2 || len(read.History.Spans) == 0 ||
		len(read.History.Seconds) == 0 || len(read.Settings) < 10 || read.Host.Load == "" || len(read.Host.Disks) != 3 || read.Server.Slots != 12 {
		text, err := json.Marshal(read)
		s.t.Errorf("%s, %v", text, err)
	}
	for _, file := range []string{".json", ".html"} {
		if st, err := os.Stat(filepath.Join(d.Path, i.ID+file)); err != nil || st.Mode().Perm() != 0o600 {
			s.t.Errorf("%v, %v", st, err)
		}
	}
	clean, removed := Anonymous(read)
	text, err := json.Marshal(clean)
	if err != nil {
		s.t.Fatal(err)
	}
	host, _ := os.Hostname()
	for _, secret := range []string{"evil", "UPDATE", "t<script", "t\\u003cscript", "onerror", s.DataDir, host, "\"postgres\""} {
		if strings.Contains(string(text), secret) {
			s.t.Errorf("%q is in the bundle: %s", secret, text)
		}
	}
	if !strings.Contains(string(text), "ProcSleep") || !strings.Contains(strings.Join(removed, " "), "query text") {
		s.t.Errorf("%v: %s", removed, text)
	}
	var b strings.Builder
	if err := Text(&b, read); err != nil {
		s.t.Error(err)
	}
	for _, want := range []string{
		"ProcSleep", "plan of " + number(i.Plans[0].PID), "\n  Unproven layout: ", "\n    " + line(i.Plans[0].Statements[0].Title), "Memory of the largest processes",
		fmt.Sprintf("  %d (%s): ", i.Memory[0].PID, i.Memory[0].Type), " in memory contexts: ", "WAL: last checkpoint " + i.WAL.Checkpoint + ", end " + i.WAL.End,
	} {
		if !strings.Contains(b.String(), want) {
			s.t.Errorf("%q is not in the text: %s", want, b.String())
		}
	}
	if err := Bundle(&b, read); err != nil {
		s.t.Error(err)
	}
}

// checkProfiles takes a profile by programs in the kernel, if they can be loaded, and one without them: both find the session that
// waits, with its stack, and no idle session. A profile without room for its cost ends early.
func (s *scene) checkProfiles(f rules.Finding) {
	s.t.Helper()
	ctx := s.t.Context()
	src := &Source{Server: s.c, Capturer: s.capturer}
	sampled := &Profile{}
	g := groups{}
	if err := sampled.sample(ctx, src, f.Processes, time.Second, g, time.Hour); err != nil || sampled.Stopped {
		s.t.Errorf("%+v, %v", sampled, err)
	}
	sampled.Stacks, _ = g.list()
	whole := TakeProfile(ctx, src, f.Processes, time.Second)
	if whole.Error != "" || whole.Method == ByKernel && whole.Seconds <= 0 {
		s.t.Errorf("%+v", whole)
	}
	for _, p := range []*Profile{sampled, whole} {
		if !slices.ContainsFunc(p.Stacks, func(k ProfileStack) bool {
			return strings.HasPrefix(k.Wait, "Lock:") && slices.Contains(k.Frames, "ProcSleep") && k.Seconds > 0 && k.Processes == 1
		}) {
			s.t.Errorf("the waiting session is not in the profile by %s: %+v", p.Method, p.Stacks)
		}
		if slices.ContainsFunc(p.Stacks, func(k ProfileStack) bool { return strings.HasPrefix(k.Wait, "Activity:") }) {
			s.t.Errorf("a process without work is in the profile: %+v", p.Stacks)
		}
	}
	costly := &Profile{}
	if err := costly.sample(ctx, src, f.Processes, time.Minute, groups{}, 0); err != nil || !costly.Stopped {
		s.t.Errorf("%+v, %v", costly, err)
	}
}
