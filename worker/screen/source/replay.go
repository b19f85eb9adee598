package source

import (
	"fmt"
	"slices"
	"time"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/units"
)

// Replay is the state of the replay of WAL on a standby.
type Replay struct {
	// LagBytes is the WAL that the standby has received and not replayed yet. It is absent if the standby has received none since
	// its start.
	LagBytes *uint64 `json:"lag_bytes,omitempty"`
	// Paused is set while replay is paused by pg_wal_replay_pause.
	Paused bool `json:"paused,omitempty"`
	// Since is the time of the first of the samples in a row that show replay at this position. It is absent if the last two samples
	// show different positions, or if no received WAL waits.
	Since *time.Time `json:"stands_since,omitempty"`

	position uint64
}

// startupType is the type of the process that replays WAL.
const startupType = "startup"

// startup returns the process that replays WAL; nil: the server is no standby.
func startup(m *moment.Moment) *moment.Session {
	for i := range m.Sessions {
		if m.Sessions[i].Type == startupType {
			return &m.Sessions[i]
		}
	}
	return nil
}

// replay reads how far a standby has replayed; nil: the server is no standby, or this is not known.
func (l *Live) replay(m *moment.Moment) *Replay {
	if startup(m) == nil {
		return nil
	}
	p, err := l.reader.WAL()
	if err != nil || !p.Recovery || p.Replayed == 0 {
		return nil
	}
	r := &Replay{Paused: p.Paused, position: p.Replayed}
	if p.End != 0 {
		r.LagBytes = new(p.ReplayLag())
	}
	return r
}

// lag returns the WAL that waits, in bytes.
func (r *Replay) lag() uint64 {
	if r == nil || r.LagBytes == nil {
		return 0
	}
	return *r.LagBytes
}

// LongReplay is the time without an advance of replay after which it is a finding, if received WAL waits.
const LongReplay = 10 * time.Second

// stands sets Since, and returns for how long replay has not advanced while received WAL waits. A delay by
// recovery_min_apply_delay counts as an advance.
func (r *rules) stands(f *facts) time.Duration {
	if f.replay.lag() == 0 {
		return 0
	}
	if s := startup(f.m); s != nil && s.Wait != nil && s.Wait.Event == "RecoveryApplyDelay" {
		return 0
	}
	since, samples := r.holds(fmt.Sprintf(replayAt+"%d", f.replay.position), f.m.Time)
	if samples < 2 { //nolint:mnd // two samples at the same position
		return 0
	}
	f.replay.Since = &since
	return f.m.Time.Sub(since)
}

// replays finds that replay does not advance. If the startup process waits for a session, the finding of that session says it.
func (r *rules) replays(f *facts, b *Blocking) []Finding {
	took := r.stands(f)
	s := startup(f.m)
	if took < LongReplay || s == nil {
		return nil
	}
	for i := range b.Nodes {
		if b.Nodes[i].PID == s.ServerPID && b.Nodes[i].Depth > 0 {
			return nil
		}
	}
	find := Finding{
		Key: RuleReplay, Rule: RuleReplay, Severity: Warning, Sessions: 1, PID: s.ServerPID, Since: *f.replay.Since, AtLeast: true,
		Text: fmt.Sprintf("replay on this standby has not advanced for %s: %s of received WAL wait", units.Age(took), units.Size(f.replay.lag())),
	}
	if f.replay.Paused {
		find.Text += " (replay is paused)"
	}
	return []Finding{find}
}

// heldReplay says for the finding of a session that blocks the nodes below it, which are all in the parameter below, that replay waits.
// Both texts are empty if it does not: what the session blocks, and what follows from that.
func heldReplay(f *facts, below []BlockingNode) (what, then string) {
	i := slices.IndexFunc(below, func(n BlockingNode) bool { return n.Session != nil && n.Session.Type == startupType })
	if i < 0 {
		return "", ""
	}
	what = "the startup process"
	if others := len(below) - 1; others > 0 {
		what += " and " + units.Count(others, "session")
	}
	if n := f.replay.lag(); n > 0 {
		then = ": replay stands still, " + units.Size(n) + " of received WAL wait"
	}
	return what, then
}
