package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// clock makes looks a second apart.
type clock struct {
	e     *Engine
	at    time.Time
	rows  []store.Row
	procs map[int32]Proc
	clients,
	slots int
	starved time.Duration
	archive Archiving
}

func newClock(c Config) *clock { return &clock{e: New(c), at: time.Unix(1_800_000_000, 0)} }

func (c *clock) micro(ago time.Duration) int64 { return c.at.Add(-ago).UnixMicro() }

// run looks once a second for a time, and returns the findings as text: rule, time since the begin, cause.
func (c *clock) run(long time.Duration) string {
	var found []string
	for begin, end := c.at, c.at.Add(long); !c.at.After(end); c.at = c.at.Add(time.Second) {
		r := c.e.Look(&Look{
			Time: c.at, Period: time.Second, Rows: c.rows, Procs: c.procs, Clients: c.clients, Slots: c.slots, Starved: c.starved,
			Archiver: c.archive,
		})
		for _, f := range r.New {
			found = append(found, fmt.Sprintf("%s at %s", f.Rule, c.at.Sub(begin)))
		}
		for _, f := range r.OverBudget {
			found = append(found, f.Rule+" over budget")
		}
	}
	return strings.Join(found, ", ")
}

func (c *clock) waiter(pid, behind int32) store.Row {
	return store.Row{
		PID: pid, Start: 1, WaitType: "Lock", WaitEvent: "transactionid", WaitStart: c.micro(0), XactStart: c.micro(0),
		BlockedBy: []store.Blocker{{PID: behind, Lock: "transactionid"}},
	}
}

// TestRules has one stall for each rule, and the time after which it is an incident.
func TestRules(t *testing.T) {
	t.Parallel()
	for name, stall := range map[string]struct {
		set  func(*clock)
		want string
	}{
		"lock_wait at 10s": {func(c *clock) {
			c.rows = []store.Row{c.waiter(2, 1), c.waiter(3, 2), c.waiter(4, 1), {PID: 1, Start: 1, XactStart: 5, State: "active"}}
		}, "lock_wait at 10s"},
		"unknown holder": {func(c *clock) {
			c.rows = []store.Row{{PID: 2, WaitType: "Lock", WaitEvent: "tuple"}}
		}, "lock_wait at 10s"},
		"deadlock": {func(c *clock) { c.rows = []store.Row{c.waiter(2, 3), c.waiter(3, 2), c.waiter(4, 3)} }, "lock_wait at 10s"},
		"idle_in_transaction": {func(c *clock) {
			c.e.config.Rule(LockWait).Off = true
			c.rows = []store.Row{c.waiter(2, 1), {PID: 1, State: "idle in transaction", StateStart: c.micro(10 * time.Hour)}}
		}, "idle_in_transaction at 1m0s"},
		"idle without waiters": {func(c *clock) {
			c.rows = []store.Row{{PID: 1, State: "idle in transaction", StateStart: c.micro(time.Hour)}}
		}, ""},
		"one cause": {func(c *clock) { // two rules, and a commit that waits for a standby with a lock that others wait for
			c.rows = []store.Row{c.waiter(2, 1), {PID: 1, WaitType: "IPC", WaitEvent: "SyncRep", XactStart: 7}, c.waiter(3, 2)}
		}, "commit_wait at 10s"},
		"commits that return": {func(c *clock) {
			c.rows = []store.Row{{PID: 1, WaitType: "IPC", WaitEvent: "SyncRep", XactStart: 7, Ended: true}}
		}, ""},
		"connections":              {func(c *clock) { c.clients, c.slots = 91, 100 }, "connections at 0s"},
		"connections at the limit": {func(c *clock) { c.clients, c.slots = 90, 100 }, ""},
		"uninterruptible": {func(c *clock) {
			c.rows, c.procs = []store.Row{{PID: 1}, {PID: 2}}, map[int32]Proc{1: {State: 'D', Switches: 7}, 2: {State: 'D', Switches: 8}}
		}, "uninterruptible at 5s"},
		"lwlock_wait": {func(c *clock) {
			c.rows = []store.Row{{PID: 1, WaitType: "LWLock", WaitEvent: "WALWrite"}, {PID: 2, WaitType: "LWLock", WaitEvent: "WALWrite"}}
			c.procs = map[int32]Proc{1: {State: 'S', Switches: 7}, 2: {State: 'S', Switches: 9}}
		}, "lwlock_wait at 1s"},
		"lock of a buffer's content in 19": {func(c *clock) { // the cause of the lock waits behind it too
			c.rows = []store.Row{
				{PID: 1, WaitType: "Buffer", WaitEvent: "BufferExclusive"}, {PID: 2, WaitType: "Buffer", WaitEvent: "BufferShared"}, c.waiter(3, 1),
			}
			c.procs = map[int32]Proc{1: {State: 'S', Switches: 7}, 2: {State: 'S', Switches: 9}}
		}, "lwlock_wait at 1s"},
		"buffer pin in 19": {func(c *clock) {
			c.rows = []store.Row{{PID: 1, WaitType: "Buffer", WaitEvent: "BufferCleanup"}}
			c.procs = map[int32]Proc{1: {State: 'S', Switches: 7}}
		}, ""},
		"lwlock of a process that runs": {func(c *clock) {
			c.rows = []store.Row{{PID: 1, WaitType: "LWLock", WaitEvent: "WALWrite"}}
			c.procs = map[int32]Proc{1: {State: 'R', Switches: 7}}
		}, ""},
		"archiver": {func(c *clock) { c.archive = Archiving{PID: 9, File: "000000010000000000000001"} }, "archiver at 2m0s"},
		"archiver that has succeeded": {func(c *clock) {
			c.archive = Archiving{PID: 9, File: "000000010000000000000001", Done: true}
		}, ""},
		"starved":          {func(c *clock) { c.starved = 6 * time.Second }, "starved at 0s"},
		"a little starved": {func(c *clock) { c.starved = time.Second }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock(Default())
			stall.set(c)
			if got := c.run(5 * time.Minute); got != stall.want {
				t.Errorf("%q, want %q", got, stall.want)
			}
		})
	}
}

// TestIdentity has a short wait of the same kind at each look. Each is a new wait, so none lasts long enough for a finding.
func TestIdentity(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	for i := range int64(100) {
		c.rows = []store.Row{c.waiter(2, 1), {PID: 3, WaitType: "IPC", WaitEvent: "SyncRep", XactStart: c.micro(0)}, {PID: 4, WaitType: "LWLock", WaitEvent: "X"}}
		c.procs = map[int32]Proc{4: {State: 'S', Switches: uint64(i)}, 3: {State: 'D', Switches: uint64(i)}}
		if got := c.run(0); got != "" {
			t.Fatalf("%s after %d looks", got, i)
		}
	}
}

// TestArchiver has an archiver that succeeds with each file, restarts of an archiver that fails, and late looks.
func TestArchiver(t *testing.T) {
	t.Parallel()
	moves := newClock(Default())
	for i := range 20 {
		moves.archive = Archiving{PID: 9, File: fmt.Sprintf("0000000100000000000000%02d", i)}
		if got := moves.run(119 * time.Second); got != "" {
			t.Fatalf("%s with file %d", got, i)
		}
	}
	const file = "000000010000000000000001"
	dies := newClock(Default())
	for range 6 {
		dies.archive = Archiving{PID: 9, File: file}
		if got := dies.run(9 * time.Second); got != "" {
			t.Fatal(got)
		}
		dies.archive = Archiving{}
		if got := dies.run(9 * time.Second); got != "" {
			t.Fatalf("%s without an archiver", got)
		}
	}
	dies.archive = Archiving{PID: 9, File: file}
	if got := dies.run(9 * time.Second); got != "archiver at 0s" {
		t.Errorf("%q after two minutes with restarts", got)
	}
	late := newClock(Default())
	late.run(0)
	late.at = late.at.Add(time.Hour)
	late.archive = Archiving{PID: 9, File: file}
	if got := late.run(119 * time.Second); got != "" {
		t.Errorf("%s from a late look", got)
	}
	late.archive = Archiving{PID: 9, Done: true}
	late.run(0)
	late.archive.Done, late.archive.File = false, file
	if got := late.run(119 * time.Second); got != "" {
		t.Errorf("%s after a success", got)
	}
}

// TestClock has a late look, a look without sessions, and steps of the wall clock.
func TestClock(t *testing.T) {
	t.Parallel()
	late := newClock(Default())
	late.run(0)
	late.at = late.at.Add(time.Hour) // a late look shows a wait that the look before did not have
	late.rows = []store.Row{{PID: 3, WaitType: "IPC", WaitEvent: "SyncRep", XactStart: 1}, {PID: 4, WaitType: "LWLock", WaitEvent: "X"}}
	late.procs = map[int32]Proc{4: {State: 'S', Switches: 1}}
	if got := late.run(0); got != "" {
		t.Errorf("%s from one late look", got)
	}
	step := newClock(Default())
	step.run(0)
	step.rows = []store.Row{step.waiter(2, 1)}
	step.rows[0].WaitStart = step.micro(time.Hour) // the wall clock has gone forward by an hour since
	if got := step.run(5 * time.Second); got != "" {
		t.Errorf("%s after a step of the clock", got)
	}
	gap := newClock(Default())
	gap.rows = []store.Row{{PID: 3, WaitType: "IPC", WaitEvent: "SyncRep", XactStart: 1}}
	gap.run(5 * time.Second)
	gap.e.Look(&Look{Time: gap.at, Unread: true})
	if got := gap.run(5 * time.Second); got == "" {
		t.Error("a look without sessions ended a wait")
	}
}

// TestCooldown has a cause that returns, and more causes than the budget allows.
func TestCooldown(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	c.clients, c.slots = 100, 100
	if got := c.run(3 * time.Hour); got != "connections at 0s" {
		t.Errorf("%q while the cause lasts", got)
	}
	c.clients = 0
	c.run(5 * time.Minute)
	c.clients = 100
	if got := c.run(time.Minute); got != "" {
		t.Errorf("%q within the cool-down", got)
	}
	c.clients = 0
	c.run(11 * time.Minute)
	c.clients = 100
	if got := c.run(time.Minute); got != "connections at 0s" {
		t.Errorf("%q after the cool-down", got)
	}
	many := newClock(Default())
	for i := range int32(30) {
		many.rows = append(many.rows, many.waiter(100+i, i+1), store.Row{PID: i + 1, XactStart: 9})
	}
	got := many.run(time.Minute)
	if n := strings.Count(got, "lock_wait at 10s"); n != defaultBudget || strings.Count(got, "over budget") != 30-defaultBudget {
		t.Errorf("%d incidents: %s", n, got)
	}
	known := newClock(Default())
	known.clients, known.slots = 100, 100
	known.e.Known("connections", known.at.Add(-time.Minute))
	if got := known.run(time.Minute); got != "" {
		t.Errorf("%q again after a restart", got)
	}
}

// TestBudgetShares has a role that causes more stalls than its half of the budget, other roles, and the archiver.
func TestBudgetShares(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	stalls := func(n, first int32, role uint32) {
		for pid := first; pid < first+2*n; pid += 2 {
			w := c.waiter(pid, pid+1)
			w.UserID = 8 // the role of the session that holds the lock counts
			c.rows = append(c.rows, w, store.Row{PID: pid + 1, Start: 1, XactStart: 9, UserID: role})
		}
	}
	fired := func(long time.Duration, want string, n int) {
		t.Helper()
		if got := c.run(long); strings.Count(got, want) != n || strings.Count(got, " at ") != n {
			t.Errorf("not %d of %q: %s", n, want, got)
		}
	}
	stalls(30, 100, 7)
	fired(20*time.Second, "lock_wait at", 6)
	stalls(3, 200, 8)
	stalls(3, 300, 9)
	fired(20*time.Second, "lock_wait at", 3)
	c.archive = Archiving{File: "000000010000000000000001", PID: 9}
	fired(3*time.Minute, "archiver at 2m0s", 1)
	c.at = c.at.Add(50 * time.Minute)
	fired(10*time.Minute, "lock_wait at", 9) // the first hour is over: six more of role 7, and those of role 9
}

// TestBudgetLater has a stall for which the budget has no room at first, and a stall that becomes part of an incident meanwhile.
func TestBudgetLater(t *testing.T) {
	t.Parallel()
	config := Default()
	config.Budget = 1
	c := newClock(config)
	c.clients, c.slots = 100, 100
	c.run(time.Second)
	c.archive = Archiving{File: "000000010000000000000001", PID: 9}
	if got := c.run(3 * time.Minute); got != "archiver over budget" {
		t.Errorf("%q without room", got)
	}
	c.at = c.at.Add(50 * time.Minute)
	if got := c.run(10 * time.Minute); !strings.HasPrefix(got, "archiver at 6m") || strings.Contains(got, ",") {
		t.Errorf("%q with room", got)
	}
	merged := newClock(config)
	merged.rows = []store.Row{merged.waiter(2, 1), {PID: 1, Start: 1, XactStart: 9}}
	merged.run(20 * time.Second)
	merged.rows = append(merged.rows, merged.waiter(4, 3), store.Row{PID: 3, Start: 1, XactStart: 9})
	if got := merged.run(time.Minute); got != "lock_wait over budget" {
		t.Errorf("%q for the second stall", got)
	}
	merged.rows[3] = merged.waiter(3, 1)
	for range 2 {
		if got := merged.run(time.Minute); got != "" {
			t.Errorf("%q, though it is a part of an incident", got)
		}
		merged.at = merged.at.Add(2 * time.Hour)
	}
}

// TestGap has a stall that lasts while the worker does not look for longer than the cool-down. It lasts on, or ends afterwards.
func TestGap(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		c := newClock(Default())
		c.rows = []store.Row{c.waiter(2, 1), {PID: 1, XactStart: 5}}
		if got := c.run(time.Minute); got != "lock_wait at 10s" {
			t.Fatal(got)
		}
		for range 2 {
			c.at = c.at.Add(time.Hour) // such as while the worker is stopped
			if got := c.run(time.Minute); got != "" {
				t.Errorf("%q after an hour without a look", got)
			}
		}
		rows := c.rows
		c.rows = nil
		c.run(0)
		if ends {
			c.run(11 * time.Minute)
		}
		c.rows = rows
		if got := c.run(time.Minute); (got != "") != ends {
			t.Errorf("%q after the stall ended: %v", got, ends)
		}
	}
}

// TestCauseChanges has one stall whose cause looks different at some looks, and a disk that hangs afterwards.
func TestCauseChanges(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	waiter, root := c.waiter(2, 1), store.Row{PID: 1, Start: 1, XactStart: 5, State: "active"}
	unknown := waiter
	unknown.BlockedBy = nil
	var got []string
	for i := range 60 {
		c.rows, c.procs = []store.Row{waiter, root}, map[int32]Proc{1: {State: 'R'}}
		switch i % 5 {
		case 1: // it reads a page
			c.procs[1] = Proc{State: 'D', Switches: uint64(i)}
		case 2:
			c.rows[1].WaitType, c.rows[1].WaitEvent, c.procs[1] = "LWLock", "WALWrite", Proc{State: 'S', Switches: uint64(i)}
		case 3: // the locks could not be read
			c.rows[0] = unknown
		}
		if f := c.run(0); f != "" {
			got = append(got, f)
		}
	}
	if strings.Join(got, ", ") != "lock_wait at 0s" {
		t.Errorf("one stall: %q", got)
	}
	c.rows, c.procs = []store.Row{{PID: 7, Start: 7}}, map[int32]Proc{7: {State: 'D', Switches: 1}}
	if f := c.run(20 * time.Second); f != "uninterruptible at 5s" {
		t.Errorf("another process waits for a disk: %q", f)
	}
	c.rows, c.procs = []store.Row{waiter, root}, map[int32]Proc{1: {State: 'D', Switches: 1}}
	if f := c.run(20 * time.Second); f != "" {
		t.Errorf("the same stall, and the same disk: %q", f)
	}
}

// TestHandover has a row for which sessions wait: one after the other gets it, and the others wait on.
func TestHandover(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	var waiters []store.Row
	for pid := int32(2); pid < 8; pid++ {
		waiters = append(waiters, c.waiter(pid, pid-1))
	}
	var got []string
	for i := range waiters {
		c.rows = append([]store.Row{{PID: int32(i + 1), Start: 1, XactStart: int64(i + 1)}}, waiters[i:]...)
		if f := c.run(15 * time.Second); f != "" {
			got = append(got, f)
		}
	}
	if strings.Join(got, ", ") != "lock_wait at 10s" {
		t.Errorf("%q", got)
	}
}

// TestJitter has looks that come some milliseconds early.
func TestJitter(t *testing.T) {
	t.Parallel()
	for early, want := range map[time.Duration]string{10 * time.Millisecond: "commit_wait at 10", 100 * time.Millisecond: ""} {
		c := newClock(Default())
		c.rows = []store.Row{{PID: 1, WaitType: "IPC", WaitEvent: "SyncRep", XactStart: 7}}
		c.run(8 * time.Second)
		c.at = c.at.Add(time.Second - early)
		if got := c.run(0); (got != "") != (want != "") {
			t.Errorf("%q at 10 s less %s", got, early)
		}
	}
}

// TestNext has two waits, and the time until the first of them is found.
func TestNext(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	if c.run(0); c.e.Next() != 0 {
		t.Errorf("%s without a wait", c.e.Next())
	}
	c.rows = []store.Row{c.waiter(2, 1), {PID: 1, XactStart: 5}}
	c.at = c.at.Add(3 * time.Second)
	c.rows = append(c.rows, c.waiter(4, 3), store.Row{PID: 3, XactStart: 6})
	if c.run(0); c.e.Next() != 7*time.Second { // run moves the clock by a second after each look
		t.Errorf("%s to the end of a wait that began 3 s ago", c.e.Next())
	}
	c.at = c.at.Add(c.e.Next() - time.Second)
	if got := c.run(0); got != "lock_wait at 0s" || c.e.Next() <= 0 || c.e.Next() > 4*time.Second {
		t.Errorf("%q, then %s", got, c.e.Next())
	}
	if c.e.Look(&Look{Time: c.at, Unread: true}); c.e.Next() != 0 {
		t.Errorf("%s without sessions", c.e.Next())
	}
}

// TestConvoy has one table, whose lock passes from one waiter to the next.
func TestConvoy(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	var rows []store.Row
	for pid := int32(2); pid < 12; pid++ {
		r := c.waiter(pid, 1)
		r.BlockedBy[0] = store.Blocker{PID: 1, Lock: "relation", Object: "relation 7 of database 5"}
		rows = append(rows, r)
	}
	var got []string
	for holder := int32(1); holder < 12; holder++ {
		c.rows = append([]store.Row{{PID: holder, XactStart: int64(holder)}}, rows[holder-1:]...)
		for i := range c.rows[1:] {
			c.rows[1+i].BlockedBy = []store.Blocker{{PID: holder, Lock: "relation", Object: "relation 7 of database 5"}}
		}
		if f := c.run(15 * time.Second); f != "" {
			got = append(got, f)
		}
	}
	if len(got) != 1 {
		t.Errorf("%d incidents: %v", len(got), got)
	}
}

// TestIdleChain counts the sessions behind an idle transaction, also sessions that wait for another waiting session.
func TestIdleChain(t *testing.T) {
	t.Parallel()
	c := newClock(Default())
	c.e.config.Rule(LockWait).Off = true
	c.rows = []store.Row{c.waiter(2, 1), c.waiter(3, 2), c.waiter(4, 3), c.waiter(5, 9), {PID: 1, Start: 1, XactStart: 5, State: "idle in transaction"}}
	c.at = c.at.Add(2 * time.Minute)
	var got []Finding
	for range 2 {
		got = append(got, c.e.Look(&Look{Time: c.at, Period: time.Second, Rows: c.rows}).New...)
		c.at = c.at.Add(2 * time.Minute)
	}
	if len(got) != 1 || !strings.Contains(got[0].Summary, "has blocked 3 sessions") || !slices.Equal(got[0].Processes, []int32{1, 2, 3, 4}) {
		t.Errorf("%+v", got)
	}
}

// TestEnd has a stall that pauses for less than the cool-down, looks without sessions, and the end.
func TestEnd(t *testing.T) {
	t.Parallel()
	config := Default()
	config.Cooldown = time.Minute
	c := newClock(config)
	look := func(seconds int, partial bool, rows ...store.Row) (fired int, ended []Ended) {
		for range seconds {
			c.at = c.at.Add(time.Second)
			r := c.e.Look(&Look{Time: c.at, Period: time.Second, Rows: rows, Partial: partial})
			fired, ended = fired+len(r.New), append(ended, r.Ended...)
		}
		return fired, ended
	}
	waiter, root := c.waiter(2, 1), store.Row{PID: 1, Start: 1, XactStart: 5, State: "active"}
	if fired, ended := look(20, false, waiter, root); fired != 1 || ended != nil {
		t.Fatal(fired, ended)
	}
	if fired, ended := look(45, false); fired != 0 || ended != nil {
		t.Fatal("a short absence:", fired, ended)
	}
	if fired, ended := look(20, false, waiter, root); fired != 0 || ended != nil {
		t.Fatal("the stall returned:", fired, ended)
	}
	until := c.at
	if fired, ended := look(200, true); fired != 0 || ended != nil {
		t.Fatal("looks that lack sessions:", fired, ended)
	}
	if fired, ended := look(100, false); fired != 0 || len(ended) != 1 || ended[0].Rule != LockWait || !ended[0].Until.Equal(until) {
		t.Fatal("the end:", fired, ended)
	}
	waiter, root.XactStart = c.waiter(2, 1), 6
	if fired, ended := look(20, false, waiter, root); fired != 1 || ended != nil {
		t.Fatal("another stall:", fired, ended)
	}
}

// TestManySessions has more sessions than a finding lists: the summary counts all of them.
func TestManySessions(t *testing.T) {
	t.Parallel()
	const n = maxProcesses + 100
	for rule, row := range map[string]store.Row{
		CommitWait: {WaitType: "IPC", WaitEvent: "SyncRep"},
		DiskSleep:  {},
		LWLockWait: {WaitType: "LWLock", WaitEvent: "WALWrite"},
		LockWait:   {WaitType: "Lock", WaitEvent: "relation", BlockedBy: []store.Blocker{{PID: 1}}},
		IdleBlocks: {WaitType: "Lock", WaitEvent: "relation", BlockedBy: []store.Blocker{{PID: 2, Soft: true}, {PID: 1}}},
		Checkpoint: {WaitType: "IPC", WaitEvent: "CheckpointDone"},
	} {
		config := Default()
		for i := range config.Rules {
			config.Rules[i].Off, config.Rules[i].After = config.Rules[i].Name != rule, time.Second
		}
		state := byte('S')
		if rule == DiskSleep {
			state = 'D'
		}
		l := &Look{
			Period: time.Second, Procs: map[int32]Proc{}, Rows: []store.Row{{PID: 1, Start: 1, State: "idle in transaction"}},
			Checkpointer: Checkpointing{PID: 9, Proc: Proc{State: state}},
		}
		for i := range int32(n) {
			row.PID, row.Start = 100+i, 1
			l.Rows = append(l.Rows, row)
			l.Procs[row.PID] = Proc{State: state}
		}
		e, found := New(config), []Finding(nil)
		for second := range int64(10) {
			l.Time = time.Unix(1_800_000_000+second, 0)
			found = append(found, e.Look(l).New...)
		}
		if len(found) != 1 || !strings.Contains(found[0].Summary, fmt.Sprint(n)) || len(found[0].Processes) > maxProcesses+1 {
			t.Errorf("%s: %.300v", rule, found)
		}
	}
}

// TestMerge has findings with common causes: the first of them gets the processes of all, each once, up to the limit.
func TestMerge(t *testing.T) {
	t.Parallel()
	many := func(from, n int32) (list []int32) {
		for i := range n {
			list = append(list, from+i)
		}
		return list
	}
	for name, test := range map[string]struct {
		found []Finding
		want  []Finding
	}{
		"a common cause": {
			[]Finding{{Rule: LockWait, Cause: "a", Processes: []int32{1, 2}}, {Rule: IdleBlocks, Cause: "a", Processes: []int32{2, 3}}},
			[]Finding{{Rule: LockWait, Processes: []int32{1, 2, 3}, keys: []string{"a", "a"}}},
		},
		"a key is the cause of another": {
			[]Finding{{Rule: LockWait, Cause: "a", keys: []string{"b"}, Processes: []int32{1}}, {Rule: IdleBlocks, Cause: "b", Processes: []int32{3}}},
			[]Finding{{Rule: LockWait, Processes: []int32{1, 3}, keys: []string{"a", "b", "b"}}},
		},
		"by another finding": { // the third has a key of the second, which is a part of the first
			[]Finding{
				{Rule: LockWait, Cause: "a", Processes: []int32{1}}, {Rule: IdleBlocks, Cause: "b", keys: []string{"a"}, Processes: []int32{2}},
				{Rule: CommitWait, Cause: "c", keys: []string{"b"}, Processes: []int32{3}},
			},
			[]Finding{{Rule: LockWait, Processes: []int32{1, 2, 3}, keys: []string{"a", "b", "a", "c", "b"}}},
		},
		"the first of two": {
			[]Finding{
				{Rule: LockWait, Cause: "a", Processes: []int32{1}}, {Rule: IdleBlocks, Cause: "b", Processes: []int32{2}},
				{Rule: CommitWait, Cause: "b", keys: []string{"a"}, Processes: []int32{3}},
			},
			[]Finding{
				{Rule: LockWait, Processes: []int32{1, 3}, keys: []string{"a", "b", "a"}}, {Rule: IdleBlocks, Processes: []int32{2}, keys: []string{"b"}},
			},
		},
		"empty keys are no cause": {
			[]Finding{{Rule: LockWait, keys: []string{"", "a"}, Processes: []int32{1}}, {Rule: IdleBlocks, Cause: "b", keys: []string{""}, Processes: []int32{2}}},
			[]Finding{{Rule: LockWait, Processes: []int32{1}, keys: []string{"a"}}, {Rule: IdleBlocks, Processes: []int32{2}, keys: []string{"b"}}},
		},
		"the limit": {
			[]Finding{{Rule: LockWait, Cause: "a", Processes: many(1, maxProcesses-1)}, {Rule: IdleBlocks, Cause: "a", Processes: many(900, 5)}},
			[]Finding{{Rule: LockWait, Processes: append(many(1, maxProcesses-1), 900), keys: []string{"a", "a"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := merge(test.found)
			if len(got) != len(test.want) {
				t.Fatalf("%d findings, want %d: %v", len(got), len(test.want), got)
			}
			for i, w := range test.want {
				if g := got[i]; g.Rule != w.Rule || !slices.Equal(g.Processes, w.Processes) || !slices.Equal(g.keys, w.keys) {
					t.Errorf("finding %d: %s with processes %v and keys %q, want %s, %v, %q", i, g.Rule, g.Processes, g.keys, w.Rule, w.Processes, w.keys)
				}
			}
		})
	}
}

// TestAbsent has a stall that is absent from looks for longer than the cool-down. Only looks with all sessions prove that it has
// ended.
func TestAbsent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		look  Look
		again bool
	}{
		"all sessions":     {Look{}, true},
		"a part of them":   {Look{Partial: true}, false},
		"without sessions": {Look{Unread: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock(Default())
			rows := []store.Row{c.waiter(2, 1), {PID: 1, Start: 1, XactStart: 5, State: "active"}}
			c.rows = rows
			if got := c.run(time.Minute); got != "lock_wait at 10s" {
				t.Fatal(got)
			}
			for end := c.at.Add(c.e.config.Cooldown + time.Minute); c.at.Before(end); c.at = c.at.Add(time.Second) {
				look := test.look
				look.Time, look.Period = c.at, time.Second
				c.e.Look(&look)
			}
			if got := c.run(time.Minute); (got != "") != test.again {
				t.Errorf("%q when the stall returned", got)
			}
		})
	}
}
