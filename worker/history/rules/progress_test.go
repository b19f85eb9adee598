package rules

import (
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// eachSecond makes a look once a second for a number of seconds. Before each look, it calls the function set, which changes the
// look. It returns the findings as text: rule and second.
func eachSecond(e *Engine, seconds int, set func(l *Look, second int)) string {
	var found []string
	for s := range seconds + 1 {
		l := &Look{Time: time.Unix(1_800_000_000, 0).Add(time.Duration(s) * time.Second), Period: time.Second}
		set(l, s)
		for _, f := range e.Look(l).New {
			found = append(found, f.Rule+" at "+l.Time.Sub(time.Unix(1_800_000_000, 0)).String()+": "+f.Cause)
		}
	}
	return strings.Join(found, ", ")
}

// TestSameStack has samples of processes that run: each with the time at which it is an incident.
func TestSameStack(t *testing.T) {
	t.Parallel()
	type change struct {
		query      int64 // start of the statement
		state      byte
		wait       string
		ran        float64 // share of the time
		noSample   bool
		noLook     bool
		other      bool // the sample belongs to another statement
		inner, out []string
	}
	base := []string{"ExecAgg", "ExecutorRun", "main"}
	loop := func() change { return change{query: 7, state: 'R', ran: 1, out: base} }
	for name, c := range map[string]struct {
		at   func(second int, c *change)
		want string
	}{
		"one stack":                    {func(int, *change) {}, "same_stack at 30s"},
		"innermost functions differ":   {func(s int, c *change) { c.inner = [][]string{nil, {"a"}, {"b", "a"}}[s%3] }, "same_stack at 30s"},
		"deeper stacks differ":         {func(s int, c *change) { c.inner = [][]string{nil, {"x", "b", "a"}}[s%2] }, ""},
		"another caller at second 20":  {func(s int, c *change) { c.out = append([]string{"x", "y"}, base[min(1, s/20):]...) }, "same_stack at 50s"},
		"statements follow each other": {func(s int, c *change) { c.query = int64(1 + s/29) }, ""},
		"a wait now and then":          {func(s int, c *change) { c.wait = []string{"", "IO"}[min(1, s%25/24)] }, ""},
		"not on a processor at times":  {func(s int, c *change) { c.state = []byte("RS")[min(1, s%25/24)] }, ""},
		"ready to run, without a turn": {func(_ int, c *change) { c.ran = 0.3 }, ""},
		"the kernel has no times":      {func(_ int, c *change) { c.ran = 0 }, ""},
		"no samples":                   {func(_ int, c *change) { c.noSample = true }, ""},
		"few samples":                  {func(s int, c *change) { c.noSample = s%9 != 0 }, "same_stack at 36s"},
		"a pause without samples":      {func(s int, c *change) { c.noSample = s > 5 && s < 20 }, "same_stack at 50s"},
		"a late look":                  {func(s int, c *change) { c.noLook = s > 5 && s < 70 }, ""},
		"samples of another statement": {func(_ int, c *change) { c.other = true }, ""},
		"PL/pgSQL": {func(s int, c *change) {
			c.inner = append(strings.Split("i h g f e d"[:1+2*(s%6)], " "), "pl:f() line 3", "exec_stmts", "plpgsql_exec_function")
		}, "same_stack at 30s"},
		"names of PL/pgSQL functions": {func(s int, c *change) {
			c.inner = [][]string{{"pl:f() line 3", "plpgsql_exec_function"}, {"plpgsql_exec_function"}}[s%2]
		}, "same_stack at 30s"},
		"PL/pgSQL that runs SQL": {func(s int, c *change) {
			c.inner = append(strings.Split("i h g f e d"[:1+2*(s%6)], " "), "_SPI_execute_plan", "exec_stmts", "plpgsql_exec_function")
		}, ""},
		"PL/pgSQL that calls PL/pgSQL": {func(s int, c *change) {
			c.inner = [][]string{{"plpgsql_exec_function"}, {"plpgsql_exec_function", "ExecInterpExpr", "exec_stmts", "plpgsql_exec_function"}}[s%2]
		}, ""},
		"empty stacks":                   {func(_ int, c *change) { c.out = nil }, ""},
		"a statement without its start":  {func(_ int, c *change) { c.query = 0 }, ""},
		"a stack without common callers": {func(s int, c *change) { c.out = []string{"a", string(rune('a' + s%2))} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := eachSecond(New(Default()), 80, func(l *Look, second int) {
				c2 := loop()
				c.at(second, &c2)
				if c2.noLook {
					l.Unread = true
					return
				}
				l.Rows = []store.Row{{PID: 5, Start: 1, XactStart: 3, QueryStart: c2.query, State: "active", WaitType: c2.wait}}
				l.Procs = map[int32]Proc{5: {State: c2.state, Ran: time.Duration(c2.ran * float64(second+1) * float64(time.Second))}}
				if !c2.noSample {
					s := Sample{Statement: c2.query, Functions: append(append([]string{}, c2.inner...), c2.out...)}
					if c2.other {
						s.Statement++
					}
					l.Stacks = map[int32]Sample{5: s}
				}
			})
			if got, _, _ = strings.Cut(got, ":"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestCheckpoint has checkpointers with and without progress.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	busy := store.Row{PID: 9, Start: 1, Type: "checkpointer"}
	asks := store.Row{PID: 4, Start: 1, WaitType: "IPC", WaitEvent: "CheckpointStart"}
	with := func(r store.Row, class, event string) store.Row { r.WaitType, r.WaitEvent = class, event; return r }
	for name, c := range map[string]struct {
		rows []store.Row
		set  func(second int, c *Checkpointing)
		want string
	}{
		"asleep": {[]store.Row{busy}, func(int, *Checkpointing) {}, "checkpoint at 1m0s: checkpoint"},
		"stopped before it has begun": {[]store.Row{asks}, func(_ int, c *Checkpointing) { c.Proc.State = 'T' },
			"checkpoint at 1m0s: checkpoint"},
		"a disk":                {[]store.Row{with(busy, "IO", "DataFileSync")}, func(_ int, c *Checkpointing) { c.Proc.State = 'D' }, "checkpoint at 1m0s: uninterruptible sleep"},
		"an LWLock":             {[]store.Row{with(busy, "LWLock", "X")}, func(int, *Checkpointing) {}, "checkpoint at 1m0s: LWLock X"},
		"idle":                  {nil, func(int, *Checkpointing) {}, ""},
		"idle with a row":       {[]store.Row{with(busy, "Activity", "CheckpointerMain")}, func(int, *Checkpointing) {}, ""},
		"it does not exist":     {[]store.Row{asks}, func(_ int, c *Checkpointing) { *c = Checkpointing{} }, ""},
		"wakes up for nothing":  {[]store.Row{with(busy, "IPC", "ProcSignalBarrier")}, func(s int, c *Checkpointing) { c.Proc.Switches = uint64(s) }, "checkpoint at 1m0s: checkpoint"},
		"waits between writes":  {[]store.Row{with(busy, "Timeout", "CheckpointWriteDelay")}, func(s int, c *Checkpointing) { c.Proc.Switches = uint64(s) }, ""},
		"syncs files":           {[]store.Row{with(busy, "IO", "DataFileSync")}, func(s int, c *Checkpointing) { c.Proc.Switches = uint64(s) }, ""},
		"writes slowly":         {[]store.Row{busy}, func(s int, c *Checkpointing) { c.Proc.Switches, c.IO = uint64(s), uint64(1+s/59) }, ""},
		"reaches another phase": {[]store.Row{busy}, func(s int, c *Checkpointing) { c.Proc.Switches, c.Work = uint64(s), uint64(1+s/59) }, ""},
		"runs":                  {[]store.Row{busy}, func(_ int, c *Checkpointing) { c.Proc.State = 'R' }, ""},
		"counts are not known":  {[]store.Row{busy}, func(s int, c *Checkpointing) { c.Proc.Switches, c.IO = uint64(s), 0 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := eachSecond(New(Default()), 150, func(l *Look, second int) {
				l.Rows = c.rows
				l.Checkpointer = Checkpointing{PID: 9, Proc: Proc{State: 'S', Switches: 7}, Work: 1, IO: 1}
				c.set(second, &l.Checkpointer)
			})
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	// Two short sleeps with the same counts, and a late look at the second one.
	if got := eachSecond(New(Default()), 150, func(l *Look, second int) {
		l.Rows, l.Unread = []store.Row{busy}, second > 3 && second < 100
		l.Checkpointer = Checkpointing{PID: 9, Proc: Proc{State: 'S', Switches: uint64(second)}, Work: 1, IO: 1}
	}); got != "" {
		t.Error("late looks:", got)
	}
}

// TestReplay has standbys with and without progress.
func TestReplay(t *testing.T) {
	t.Parallel()
	startup := store.Row{PID: 8, Type: "startup"}
	for name, c := range map[string]struct {
		rows []store.Row
		set  func(second uint64, p *Positions)
		want string
	}{
		"replay stands":                {nil, func(s uint64, p *Positions) { p.End = 200 + s }, "replay at 1m0s: replay"},
		"behind a session":             {[]store.Row{{PID: 8, Type: "startup", WaitType: "Lock", WaitStart: time.Unix(1_900_000_000, 0).UnixMicro(), BlockedBy: []store.Blocker{{PID: 5}}}, {PID: 5, Start: 1}}, func(s uint64, p *Positions) { p.End = 200 + s }, "lock_wait at 10s: process 5 of 1, transaction of 0"},
		"no lag for long":              {nil, func(s uint64, p *Positions) { p.End = 100 + s/100 }, ""},
		"no WAL arrives":               {nil, func(_ uint64, p *Positions) { p.End = 150 }, ""},
		"WAL arrives, and is replayed": {nil, func(s uint64, p *Positions) { p.End, p.Replayed = 200+s/90, 100+s/91 }, ""},
		"replay advances":              {nil, func(s uint64, p *Positions) { p.End, p.Replayed = 1000+9*s, 100+s/50 }, ""},
		"a wanted delay":               {[]store.Row{{PID: 8, Type: "startup", WaitType: "Timeout", WaitEvent: "RecoveryApplyDelay"}}, func(s uint64, p *Positions) { p.End = 200 + s }, ""},
		"a primary":                    {nil, func(s uint64, p *Positions) { p.End, p.Recovery = 200+s, false }, ""},
		"positions not known":          {nil, func(s uint64, p *Positions) { p.End, p.Known = 200+s, s%30 != 0 }, ""},
		"replay by a process":          {[]store.Row{startup}, func(s uint64, p *Positions) { p.End = 200 + s }, "replay at 1m0s: replay"},
		"lag that grows later":         {nil, func(s uint64, p *Positions) { p.End = 200 + s/90 }, "replay at 2m0s: replay"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := eachSecond(New(Default()), 150, func(l *Look, second int) {
				l.Rows, l.WAL = c.rows, Positions{Known: true, Recovery: true, Replayed: 100}
				c.set(uint64(second), &l.WAL)
			})
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestWALSender has receivers with and without progress.
func TestWALSender(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rows []store.Row
		set  func(second uint64, p *Positions, s *Sender)
		want string
	}{
		"nothing is confirmed": {nil, func(s uint64, p *Positions, _ *Sender) { p.End = 200 + s }, "wal_sender at 30s: WAL sender 6"},
		"it is still sent":     {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Sent = 200+s, 200+s }, "wal_sender at 30s: WAL sender 6"},
		"a commit waits for it": {[]store.Row{{PID: 3, XactStart: 1, QueryStart: 1, WaitType: "IPC", WaitEvent: "SyncRep", BlockedBy: []store.Blocker{{PID: 6}}}},
			func(s uint64, p *Positions, _ *Sender) { p.End = 200 + s }, "commit_wait at 10s: standby"},
		"no lag":                             {nil, func(_ uint64, p *Positions, _ *Sender) { p.End = 100 }, ""},
		"no more WAL":                        {nil, func(_ uint64, p *Positions, _ *Sender) { p.End = 1000 }, ""},
		"slow":                               {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Write = 200+s, 100+s/29 }, ""},
		"only applies":                       {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Apply = 200+s, 10+s/29 }, ""},
		"it has never answered":              {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Write, r.Flush = 200+s, 0, 0 }, ""},
		"a logical one that answers":         {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Logical, r.Reply = 200+s, true, s/10 }, ""},
		"a logical one whose sender decodes": {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Logical, r.Sent = 900+s, true, s/10 }, ""},
		"a logical one":                      {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Logical = 900+s, true }, "wal_sender at 30s: WAL sender 6"},
		"answers without progress":           {nil, func(s uint64, p *Positions, r *Sender) { p.End, r.Reply = 900+s, s }, "wal_sender at 30s: WAL sender 6"},
		"a cascade, which has not ended":     {nil, func(s uint64, p *Positions, _ *Sender) { p.End, p.Recovery, p.Replayed = 200+s, true, 200+s }, "wal_sender at 30s: WAL sender 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := eachSecond(New(Default()), 100, func(l *Look, second int) {
				s := Sender{PID: 6, Sent: 100, Write: 100, Flush: 100, Apply: 10}
				l.Rows, l.WAL = c.rows, Positions{Known: true}
				c.set(uint64(second), &l.WAL, &s)
				l.WAL.Senders = []Sender{s}
			})
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
