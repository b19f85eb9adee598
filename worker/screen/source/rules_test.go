package source

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/units"
)

// noon is the time of the moments in these tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *time.Time {
	t := noon.Add(-d)
	return &t
}

// client returns a client backend with a statement that began a minute ago.
func client(pid int, state, wait string) moment.Session {
	s := moment.Session{
		PID: pid, ServerPID: pid, Started: ago(time.Hour), Type: clientBackend, State: state, DatabaseOID: 5, Database: "shop",
		UserOID: 10, User: "web", QueryStart: ago(time.Minute), StateStart: ago(40 * time.Second), Query: fmt.Sprintf("select %d", pid),
	}
	if class, event, ok := strings.Cut(wait, ":"); ok {
		s.Wait = &moment.Wait{Type: class, Event: event}
	}
	return s
}

func waiter(pid int, lock, object string, below ...*moment.Node) *moment.Node {
	return &moment.Node{
		PID: pid, Blocked: below, Waits: []moment.LockWait{{PID: pid, Lock: lock, Object: object, Mode: "ShareLock", Since: ago(30 * time.Second)}},
	}
}

// only returns the findings of a rule.
func only(list []Finding, rule string) (found []Finding) {
	for _, f := range list {
		if f.Rule == rule {
			found = append(found, f)
		}
	}
	return found
}

// one fails unless there is one finding of a rule, and returns it.
func one(t *testing.T, list []Finding, rule string) Finding {
	t.Helper()
	found := only(list, rule)
	if len(found) != 1 {
		t.Fatalf("%d findings of %s in %+v, want 1", len(found), rule, list)
	}
	return found[0]
}

func TestIdleSessionThatBlocksOthers(t *testing.T) {
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{
		client(1, idleInTx, "Client:ClientRead"), client(2, stateActive, "Lock:relation"), client(3, stateActive, "Lock:relation"),
	}}
	m.Blocking = []*moment.Node{{PID: 1, Blocked: []*moment.Node{waiter(2, "relation", "5/16384", waiter(3, "relation", "5/16384"))}}}
	list := (&rules{}).apply(&facts{m: m, maxConnections: 100})
	f := one(t, list, RuleBlocks)
	want := "PID 1 (idle in transaction for 40 s) blocks 2 sessions on relation 16384 of database shop; 1 of them behind PID 2, which waits for ShareLock"
	if f.Text != want {
		t.Errorf("%q, want %q", f.Text, want)
	}
	if f.Severity != Critical || f.Sessions != 2 || f.PID != 1 || f.AtLeast || !f.Since.Equal(*ago(30 * time.Second)) ||
		f.Share == nil || f.Detail != "last statement: select 1" {
		t.Errorf("%+v", f)
	}
	if len(list) != 1 {
		t.Errorf("other findings: %+v", list[1:])
	}
}

// TestIdleSessionWithAdvisoryLock: the statement of an idle session that blocks others is called its last one.
func TestIdleSessionWithAdvisoryLock(t *testing.T) {
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(1, stateIdle, "Client:ClientRead"), client(2, stateActive, "Lock:advisory")}}
	m.Blocking = []*moment.Node{{PID: 1, Blocked: []*moment.Node{waiter(2, "advisory", "5/16384 7")}}}
	if f := one(t, (&rules{}).apply(&facts{m: m}), RuleBlocks); f.Detail != "last statement: select 1" {
		t.Errorf("%+v", f)
	}
}

func TestBlockerWithoutASession(t *testing.T) {
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(2, stateActive, "Lock:transactionid")}}
	m.Blocking = []*moment.Node{
		{XID: 740, GID: "transfer 1", Blocked: []*moment.Node{waiter(2, "transactionid", "740")}},
	}
	want := `The prepared transaction "transfer 1" blocks 1 session until transaction 740 ends`
	if f := one(t, (&rules{}).apply(&facts{m: m}), RuleBlocks); f.Text != want || f.PID != 0 {
		t.Errorf("%q, want %q", f.Text, want)
	}
	// Sessions that wait for different locks: no lock is named.
	m.Blocking[0].Blocked = append(m.Blocking[0].Blocked, waiter(3, "relation", "5/7"))
	if f := one(t, (&rules{}).apply(&facts{m: m}), RuleBlocks); !strings.HasSuffix(f.Text, "blocks 2 sessions") {
		t.Errorf("%q", f.Text)
	}
	m.Blocking = []*moment.Node{waiter(2, "relation", "5/7", waiter(3, "relation", "5/8"))}
	m.Blocking[0].Deadlock = true
	if f := one(t, (&rules{}).apply(&facts{m: m}), RuleDeadlock); !strings.HasPrefix(f.Text, "PID 2 (active for 40 s) and 1 other session wait") {
		t.Errorf("%q", f.Text)
	}
	// A waiter whose holder is not known blocks no session.
	m.Blocking = []*moment.Node{waiter(2, "relation", "5/7")}
	if list := (&rules{}).apply(&facts{m: m}); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

func TestConnections(t *testing.T) {
	m := &moment.Moment{Time: noon}
	for pid := range 90 {
		m.Sessions = append(m.Sessions, client(pid+1, stateIdle, "Client:ClientRead"))
	}
	m.Sessions[0].State = idleInTx
	f := one(t, (&rules{}).apply(&facts{m: m, maxConnections: 100}), RuleConnections)
	if want := "90 of 100 connections are in use (max_connections): 89 are idle, 1 idle in transaction"; f.Text != want || f.Severity != Warning {
		t.Errorf("%s %q, want %q", f.Severity, f.Text, want)
	}
	if f := one(t, (&rules{}).apply(&facts{m: m, maxConnections: 90}), RuleConnections); f.Severity != Critical {
		t.Error("full connections are no critical finding")
	}
	for _, most := range []int{101, 0} { // 89 %, and unknown
		if list := only((&rules{}).apply(&facts{m: m, maxConnections: most}), RuleConnections); len(list) != 0 {
			t.Errorf("max_connections %d: %+v", most, list)
		}
	}
}

func TestManySessionsAtOneEvent(t *testing.T) {
	m := &moment.Moment{Time: noon}
	events := []string{"LWLock:WALWrite", "LWLock:WALWrite", "LWLock:WALWrite", "IO:WalSync", "LWLock:BufferContent", "LWLock:BufferContent",
		"LWLock:BufferContent", "LWLock:BufferContent", "Lock:tuple", "Client:ClientWrite"}
	for i, e := range events {
		m.Sessions = append(m.Sessions, client(i+1, stateActive, e))
	}
	list := (&rules{}).apply(&facts{m: m})
	if f := one(t, list, RuleWAL); f.Text != "4 of 10 active sessions wait until WAL is on disk (IO:WalSync, LWLock:WALWrite)" || f.Sessions != 4 {
		t.Errorf("%q", f.Text)
	}
	if f := one(t, list, RuleEvent); f.Text != "4 of 10 active sessions wait for LWLock:BufferContent" {
		t.Errorf("%q", f.Text)
	}
	m.Sessions = m.Sessions[2:] // now 2 and 4 of 8
	if list := (&rules{}).apply(&facts{m: m}); len(only(list, RuleWAL)) != 0 || len(only(list, RuleEvent)) != 1 {
		t.Errorf("%+v", list)
	}
}

func TestBufferPin(t *testing.T) {
	holder := client(2, "idle in transaction", "")
	holder.StateStart = ago(40 * time.Second)
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(1, stateActive, "BufferPin:BufferPin"), holder}}
	m.Blocking = []*moment.Node{{PID: 1, Waits: []moment.LockWait{{PID: 1, Lock: "buffer pin", Candidates: []int{2}}}}}
	r := &rules{}
	for sample := 1; sample <= samplesOfPin; sample++ {
		list := only(r.apply(&facts{m: m}), RulePin)
		if (len(list) == 1) != (sample == samplesOfPin) {
			t.Fatalf("sample %d: %+v", sample, list)
		}
		if len(list) == 1 && (list[0].Text != "PID 1 waits for a buffer pin, a page in use: PID 2 (idle in transaction for 40 s) may hold it" || list[0].PID != 2) {
			t.Errorf("%+v", list[0])
		}
	}
	m.Blocking[0].Waits[0].Candidates = []int{2, 3}
	if f := one(t, r.apply(&facts{m: m}), RulePin); f.Text != "PID 1 waits for a buffer pin, a page in use: one of 2 processes may hold it" {
		t.Errorf("%q", f.Text)
	}
	m.Blocking[0].Waits[0].MoreCandidates = 38
	if f := one(t, r.apply(&facts{m: m}), RulePin); !strings.HasSuffix(f.Text, "one of 40 processes may hold it") {
		t.Errorf("%q", f.Text)
	}
	m.Blocking[0].Waits[0].Candidates = nil
	if list := only(r.apply(&facts{m: m}), RulePin); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

func TestWaitForStandby(t *testing.T) {
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(1, stateActive, "IPC:SyncRep")}}
	r := &rules{}
	for sample := 1; sample <= samplesOfSync; sample++ {
		list := only(r.apply(&facts{m: m}), RuleSyncRep)
		if (len(list) == 1) != (sample == samplesOfSync) {
			t.Fatalf("sample %d: %+v", sample, list)
		}
		if len(list) == 1 && list[0].Text != "1 session waits for a synchronous standby to confirm a commit (IPC:SyncRep)" {
			t.Errorf("%q", list[0].Text)
		}
	}
	m.Sessions[0].BlockersUnknown = "0 of 1 required synchronous standbys are connected"
	const waits = "1 session waits for a synchronous standby to confirm a commit: "
	if f := one(t, r.apply(&facts{m: m}), RuleSyncRep); f.Text != waits+m.Sessions[0].BlockersUnknown {
		t.Errorf("%q", f.Text)
	}
	sender := moment.Session{ServerPID: 7, Type: walSender, Application: "replica_b"}
	m.Sessions = append(m.Sessions, sender)
	m.Sessions[0].BlockersUnknown, m.Sessions[0].Blockers = "", []moment.Blocker{{PID: 7, Behind: 12 << 20}, {PID: 8, Behind: 1}}
	want := waits + "standby replica_b (WAL sender 7) is connected and has not confirmed the last 12 MB of WAL; " +
		"1 other standby has not confirmed all of it either"
	if f := one(t, r.apply(&facts{m: m}), RuleSyncRep); f.Text != want {
		t.Errorf("%q", f.Text)
	}
	m.Sessions[0].QueryStart = ago(0) // another commit: short waits are usual
	if list := only(r.apply(&facts{m: m}), RuleSyncRep); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

func TestProcessStates(t *testing.T) {
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(1, stateActive, ""), client(2, stateActive, ""), client(3, stateActive, "IO:DataFileRead")}}
	states := map[int]byte{1: 'R', 2: 'R', 3: 'D'}
	r := &rules{}
	for sample := 1; sample <= samplesOfDisk; sample++ {
		list := r.apply(&facts{m: m, processors: 1, states: states, kernel: map[int]string{3: "io_schedule"}})
		if f := one(t, list, RuleProcessors); f.Text != "2 processes of the server run or wait for a processor, and it may use 1 processor" {
			t.Errorf("%q", f.Text)
		}
		disk := only(list, RuleDisk)
		if (len(disk) == 1) != (sample == samplesOfDisk) {
			t.Fatalf("sample %d: %+v", sample, disk)
		}
		want := "PID 3 (active for 40 s) was in uninterruptible sleep (state D) in each of the last 3 samples, now in the kernel function io_schedule"
		if len(disk) == 1 && disk[0].Text != want {
			t.Errorf("%q, want %q", disk[0].Text, want)
		}
	}
	for _, p := range []float64{2, 0} { // enough processors, and an unknown number
		if list := only((&rules{}).apply(&facts{m: m, processors: p, states: states}), RuleProcessors); len(list) != 0 {
			t.Errorf("%g processors: %+v", p, list)
		}
	}
	// Sessions without a wait event are no proof: they may sleep.
	if list := only((&rules{}).apply(&facts{m: m, processors: 1, states: map[int]byte{1: 'S', 2: 'S'}}), RuleProcessors); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestOlderSweeps: sweeps for which the host was not read do not end facts about the host.
func TestOlderSweeps(t *testing.T) {
	r := &rules{}
	var list []Finding
	for i := range 3 * 5 {
		startup := moment.Session{PID: 9, ServerPID: 9, Type: startupType}
		f := &facts{m: at(float64(i), client(1, stateActive, ""), client(2, stateActive, ""), client(3, stateActive, "IO:DataFileRead"), startup), older: i%5 != 4}
		if !f.older {
			f.processors, f.maxConnections, f.states = 1, 3, map[int]byte{1: 'R', 2: 'R', 3: 'D'}
			f.replay = &Replay{LagBytes: new(uint64(1 << 20)), position: 5}
		}
		list = r.apply(f)
	}
	first := noon.Add(4 * time.Second)
	for _, rule := range []string{RuleDisk, RuleProcessors, RuleConnections, RuleReplay} {
		if f := one(t, list, rule); !f.Since.Equal(first) {
			t.Errorf("%s since %s, want %s", rule, f.Since, first)
		}
	}
	for i := range 2 { // the newest sweeps end it
		list = r.apply(&facts{m: at(float64(15 + i))})
	}
	if len(list) != 0 || len(r.first) != 0 {
		t.Errorf("%+v, %v", list, r.first)
	}
}

// TestRecordedPast: recorded sweeps, for which the host was not read, do not lower the mean of running processes.
func TestRecordedPast(t *testing.T) {
	var p past
	r := &rules{}
	for i := range meanOf {
		m := at(float64(i))
		p.addRecorded(&store.SpanSweep{Time: m.Time, Period: time.Second}, nil, m, r)
	}
	f := &facts{m: at(meanOf), processors: 1, states: map[int]byte{}}
	for pid := 1; pid <= 2; pid++ {
		f.m.Sessions, f.states[pid] = append(f.m.Sessions, client(pid, stateActive, "")), 'R'
	}
	one(t, r.apply(f), RuleProcessors)
}

// TestStatementAfterAPause: samples before a time without samples are no proof that a statement has not waited.
func TestStatementAfterAPause(t *testing.T) {
	for second, want := range map[float64]int{10: 1, 11: 0, 3600: 0} {
		r := &rules{}
		r.apply(&facts{m: at(0, client(1, stateActive, ""))})
		list := only(r.apply(&facts{m: at(second, client(1, stateActive, ""))}), RuleStatement)
		if len(list) != want {
			t.Errorf("after %g s: %+v", second, list)
		}
	}
	r := &rules{}
	for second := range 3 { // samples that are rare on purpose
		list := only(r.apply(&facts{m: at(float64(60*second), client(1, stateActive, "")), interval: time.Minute}), RuleStatement)
		if (len(list) == 1) != (second > 0) {
			t.Errorf("minute %d: %+v", second, list)
		}
	}
}

// TestFactsAfterAPause: samples before a time without samples do not count for the samples after it. Replay that is still at the same
// position has stood all the time.
func TestFactsAfterAPause(t *testing.T) {
	r := &rules{}
	sample := func(second float64) []Finding {
		m := at(second, moment.Session{PID: 9, ServerPID: 9, Type: startupType})
		states := map[int]byte{1: 'D'}
		for pid := 1; pid <= 4; pid++ {
			m.Sessions = append(m.Sessions, client(pid, stateActive, "IO:DataFileRead"), client(10+pid, stateActive, ""))
			states[10+pid] = 'R'
		}
		replay := &Replay{LagBytes: new(uint64(1 << 20)), position: 5}
		return r.apply(&facts{m: m, states: states, maxConnections: 8, processors: 1, replay: replay})
	}
	sample(0)
	sample(1)
	list := sample(3600)
	if got := only(list, RuleDisk); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	for rule, since := range map[string]time.Duration{RuleEvent: time.Hour, RuleConnections: time.Hour, RuleProcessors: time.Hour, RuleReplay: 0} {
		if f := one(t, list, rule); !f.Since.Equal(noon.Add(since)) {
			t.Errorf("%s since %s", rule, f.Since)
		}
	}
}

// TestHostAfterAPauseWithRecorder: a recorder fills a time without own samples. Its sweeps prove nothing about the host in this time.
func TestHostAfterAPauseWithRecorder(t *testing.T) {
	for _, c := range []struct{ interval, pause, since time.Duration }{
		{time.Second, 299 * time.Second, 300 * time.Second},
		{time.Second, 9 * time.Second, 0},
		{20 * time.Second, 20 * time.Second, 0}, // the usual time between two own samples is no pause
	} {
		r := &rules{}
		sample := func(second float64, older bool) []Finding {
			f := &facts{m: at(second, client(1, stateActive, "IO:DataFileRead"), client(2, stateActive, "")), older: older, interval: time.Second}
			if !older {
				f.looks, f.maxConnections, f.processors, f.states = c.interval, 2, 0.5, map[int]byte{1: 'D', 2: 'R'}
			}
			return r.apply(f)
		}
		sample(0, false)
		for s := 1.0; s < c.interval.Seconds(); s++ {
			sample(s, true)
		}
		second := c.interval.Seconds()
		sample(second, false)
		for range int(c.pause.Seconds()) - 1 {
			second++
			sample(second, true)
		}
		list := sample(second+1, false)
		if got := only(list, RuleDisk); (len(got) == 0) != (c.since > 0) {
			t.Errorf("after %s: %+v", c.pause, got)
		}
		for _, rule := range []string{RuleConnections, RuleProcessors} {
			if f := one(t, list, rule); !f.Since.Equal(noon.Add(c.since)) {
				t.Errorf("after %s: %s since %s", c.pause, rule, f.Since)
			}
		}
	}
}

func TestLongTransactionAndStatement(t *testing.T) {
	idle := client(1, idleInTx, "Client:ClientRead")
	idle.StateStart, idle.XactStart = ago(6*time.Minute), ago(time.Hour)
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{idle, client(2, stateActive, "")}}
	r := &rules{}
	list := r.apply(&facts{m: m})
	if f := one(t, list, RuleIdleInTx); f.Text != "PID 1 (idle in transaction for 6 min) keeps a transaction open, begun 1 h ago" || f.Share != nil {
		t.Errorf("%+v", f)
	}
	if len(only(list, RuleStatement)) != 0 {
		t.Error("one sample is no proof of a long computation")
	}
	m.Time = noon.Add(longStatement)
	f := one(t, r.apply(&facts{m: m}), RuleStatement)
	if want := "PID 2 has run one statement for 1 min 10 s, without a wait in the last 10 s (2 samples)"; f.Text != want || !f.Since.Equal(noon) {
		t.Errorf("%q, want %q", f.Text, want)
	}
}

// TestTimesInTheFuture: after the clock was set back, a state that is hours old began in the future. No sentence has an age then.
func TestTimesInTheFuture(t *testing.T) {
	ahead := ago(-time.Hour)
	holder, computes := client(1, idleInTx, "Client:ClientRead"), client(3, stateActive, "")
	holder.StateStart, holder.XactStart, computes.QueryStart = ahead, ahead, ahead
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{holder, client(2, stateActive, "Lock:relation"), computes}}
	m.Blocking = []*moment.Node{{PID: 1, Blocked: []*moment.Node{waiter(2, "relation", "5/16384")}}}
	r := &rules{}
	if f := one(t, r.apply(&facts{m: m}), RuleBlocks); !strings.HasPrefix(f.Text, "PID 1 (idle in transaction) blocks 1 session") {
		t.Errorf("%q", f.Text)
	}
	m.Time = noon.Add(longStatement)
	f := one(t, r.apply(&facts{m: m}), RuleStatement)
	if want := "PID 3 has run one statement without a wait in the last 10 s (2 samples)"; f.Text != want {
		t.Errorf("%q, want %q", f.Text, want)
	}
	m.Blocking, m.Sessions[0].StateStart = nil, ago(6*time.Minute)
	if f := one(t, r.apply(&facts{m: m}), RuleIdleInTx); !strings.HasSuffix(f.Text, " keeps a transaction open") {
		t.Errorf("%q", f.Text)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 ms", 350 * time.Millisecond: "350 ms", 9990 * time.Millisecond: "9.9 s", 59999 * time.Millisecond: "59 s",
		2 * time.Minute: "2 min", 200 * time.Second: "3 min 20 s", 310 * time.Minute: "5 h 10 min", 51 * time.Hour: "2 d 3 h",
	} {
		if got := units.Age(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

// TestWaiterWithTwoBlockers: a node that waits for two blockers is below the first blocker, and counts for both.
func TestWaiterWithTwoBlockers(t *testing.T) {
	again := &moment.Node{PID: 4, Repeated: true}
	m := &moment.Moment{Time: noon, Blocking: []*moment.Node{{PID: 1, Blocked: []*moment.Node{
		waiter(2, "tuple", "5/7 (0,1)", waiter(4, "relation", "5/7", waiter(5, "relation", "5/7"))), waiter(3, "tuple", "5/7 (0,1)", again),
	}}}}
	b := BlockingOf(m)
	var got []string
	for _, n := range b.Nodes {
		got = append(got, fmt.Sprintf("%d:%d depth %d blocks %d directly %d", n.PID, n.MoreBlockers, n.Depth, n.Blocks, n.Directly))
	}
	want := "1:0 depth 0 blocks 4 directly 2, 2:0 depth 1 blocks 2 directly 1, 4:1 depth 2 blocks 1 directly 1, " +
		"5:0 depth 3 blocks 0 directly 0, 3:0 depth 1 blocks 2 directly 1"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, ", "), want)
	}
}
