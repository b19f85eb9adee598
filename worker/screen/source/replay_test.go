package source

import (
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// TestReplayStands: a standby whose replay does not advance while received WAL waits is a finding after some time. If replay waits for
// a session, the finding of that session says it.
func TestReplayStands(t *testing.T) {
	t.Parallel()
	at := func(i int, wait string) *moment.Moment {
		s := moment.Session{PID: 9, ServerPID: 9, Type: startupType, Started: ago(time.Hour)}
		if class, event, ok := strings.Cut(wait, ":"); ok {
			s.Wait = &moment.Wait{Type: class, Event: event}
		}
		return &moment.Moment{Time: noon.Add(time.Duration(i) * time.Second), Sessions: []moment.Session{client(1, idleInTx, "Client:ClientRead"), s}}
	}
	for name, x := range map[string]struct {
		replay func(i int) *Replay
		wait   string
		want   string
	}{
		"stands":    {func(int) *Replay { return &Replay{LagBytes: new(uint64(120 << 20)), position: 5} }, "", "has not advanced for 10 s: 120 MB of received WAL wait"},
		"paused":    {func(int) *Replay { return &Replay{LagBytes: new(uint64(1)), Paused: true, position: 5} }, "IPC:RecoveryPause", "1 bytes of received WAL wait (replay is paused)"},
		"advances":  {func(i int) *Replay { return &Replay{LagBytes: new(uint64(120 << 20)), position: uint64(i + 1)} }, "", ""},
		"no lag":    {func(int) *Replay { return &Replay{LagBytes: new(uint64(0)), position: 5} }, "", ""},
		"no WAL":    {func(int) *Replay { return &Replay{position: 5} }, "", ""},
		"delay":     {func(int) *Replay { return &Replay{LagBytes: new(uint64(120 << 20)), position: 5} }, "Timeout:RecoveryApplyDelay", ""},
		"not known": {func(int) *Replay { return nil }, "", ""},
	} {
		var r rules
		for i := range 11 {
			f := &facts{m: at(i, x.wait), replay: x.replay(i)}
			list := only(r.apply(f), RuleReplay)
			switch {
			case i < 10 || x.want == "":
				if len(list) != 0 {
					t.Errorf("%s, after %d s: %+v", name, i, list)
				}
			case len(list) != 1 || !strings.HasSuffix(list[0].Text, x.want) || list[0].PID != 9 || !list[0].Since.Equal(noon):
				t.Errorf("%s: %+v, want %q", name, list, x.want)
			}
			if stands := x.want != "" && i > 0; f.replay != nil && (f.replay.Since != nil) != stands {
				t.Errorf("%s, after %d s: %+v", name, i, f.replay)
			}
		}
	}
	var r rules
	for i := range 12 {
		m := at(i, "Lock:relation")
		m.Blocking = []*moment.Node{{PID: 1, Blocked: []*moment.Node{waiter(9, "relation", "5/16384")}}}
		list := r.apply(&facts{m: m, replay: &Replay{LagBytes: new(uint64(3 << 20)), position: 5}})
		const want = "blocks the startup process on relation 16384 of database shop: replay stands still, 3072 kB of received WAL wait"
		if f := one(t, list, RuleBlocks); !strings.HasSuffix(f.Text, want) || len(only(list, RuleReplay)) != 0 {
			t.Errorf("%+v", list)
		}
	}
}

// TestBlockerText: the first blocker has its name, its state and the object of the lock.
func TestBlockerText(t *testing.T) {
	t.Parallel()
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{client(1, idleInTx, "Client:ClientRead"), client(2, stateActive, "Lock:relation")}}
	m.Sessions[0].Application = "cron"
	m.Sessions[1].Blockers = []moment.Blocker{{PID: 1, Lock: "relation", Object: "5/16384", Relation: "orders"}}
	for want, more := range map[string][]moment.Blocker{
		"1 (cron, idle in transaction for 40 s) on relation orders":                           nil,
		"1 (cron, idle in transaction for 40 s) on relation orders, and by 1 other process":   {{PID: 1}, {PID: 3}},
		"1 (cron, idle in transaction for 40 s) on relation orders, and by 2 other processes": {{PID: 4}, {PID: 3}},
	} {
		m.Sessions[1].Blockers = append(m.Sessions[1].Blockers[:1], more...)
		if x, err := sessionOf(m, 2, nil); err != nil || x.Blocker != want {
			t.Errorf("%q, %v, want %q", x.Blocker, err, want)
		}
	}
	m.Sessions[1].Blockers = []moment.Blocker{{XID: 740, GID: "transfer", Lock: "transactionid", Object: "740"}}
	if x, _ := sessionOf(m, 2, nil); x.Blocker != "the prepared transaction transfer until transaction 740 ends" {
		t.Errorf("%q", x.Blocker)
	}
	if x, _ := sessionOf(m, 1, nil); x.Blocker != "" {
		t.Errorf("%q", x.Blocker)
	}
}

// TestOwnSessions: idle sessions of this program are marked, and come last. Active ones keep their place, as the name is no proof.
func TestOwnSessions(t *testing.T) {
	t.Parallel()
	m := &moment.Moment{Time: noon, Sessions: []moment.Session{
		client(1, stateIdle, "Client:ClientRead"), client(2, stateIdle, "Client:ClientRead"), client(3, stateActive, ""), client(4, stateActive, ""),
		client(5, stateIdle, "Client:ClientRead"),
	}}
	m.Sessions[0].Application, m.Sessions[2].Application, m.Sessions[4].Application = "pg_stat_backtrace worker", "pg_stat_backtrace", "pg_stat_backtraces"
	var got []int
	var own []bool
	for _, s := range new(past).sessions(m, nil, 0).Sessions {
		got, own = append(got, s.ServerPID), append(own, s.Own)
	}
	for i, pid := range []int{3, 4, 2, 5, 1} {
		if got[i] != pid || own[i] != (pid == 3 || pid == 1) {
			t.Fatalf("%v, %v", got, own)
		}
	}
}
