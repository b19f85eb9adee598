package rules

import (
	"cmp"
	"fmt"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/report/units"
)

// checkpoints finds a checkpoint that makes no progress. Two observations prove this: the checkpointer has not run, or it sleeps
// at each look and has made no reads or writes and begun no new phase between the looks. A checkpoint that waits between two
// writes (CheckpointWriteDelay) makes progress.
func checkpoints(v *view) []Finding {
	rule, ok := v.e.config.on(Checkpoint)
	c := &v.Checkpointer
	if !ok || c.PID == 0 || c.Proc.State == 0 {
		return nil
	}
	w := longest{pids: []int32{c.PID}, n: 1}
	for i := range v.Rows {
		if r := &v.Rows[i]; !r.Ended && waitsForCheckpoint(r) {
			w.add(r.PID, 0)
		}
	}
	row := v.rows[c.PID]
	if w.n == 1 && (row == nil || row.WaitType == "Activity") {
		return nil // the checkpointer waits for work
	}
	if c.Proc.State != 'R' {
		w.age = v.age(waitKey{rule: Checkpoint, pid: c.PID, proof: [4]int64{int64(c.Proc.Switches)}, event: "asleep"}, 0)
	}
	if c.Proc.State == 'S' && c.Work != 0 && c.IO != 0 && (row == nil || row.WaitType != "IO" && row.WaitEvent != "CheckpointWriteDelay") {
		k := waitKey{rule: Checkpoint, pid: c.PID, proof: [4]int64{int64(c.Work), int64(c.IO)}, event: "sleeps"}
		w.age = max(w.age, v.sampled(k, rule.After))
	}
	cause, waiting := "checkpoint", ""
	if row != nil {
		cause = v.causeOf(row, c.Proc, cause) // call it at each look, so that deeper knows how long the wait lasts
	}
	if w.age < rule.After {
		return nil
	}
	if n := w.n - 1; n > 0 {
		waiting = ", and " + units.Plural(n, "%d {session waits for it|sessions wait for it}")
	}
	f := v.finding(Checkpoint, cause, fmt.Sprintf("the checkpoint has made no progress for %s%s", units.Age(w.age), waiting), &w)
	f.keys = []string{"checkpoint"}
	return []Finding{f}
}

func waitsForCheckpoint(r *store.Row) bool {
	return r.WaitType == "IPC" && (r.WaitEvent == "CheckpointStart" || r.WaitEvent == "CheckpointDone")
}

// causeOf returns the cause why an auxiliary process does not advance. If none is found, it returns the argument otherwise.
func (v *view) causeOf(r *store.Row, p Proc, otherwise string) string {
	if len(r.BlockedBy) > 0 {
		return v.cause(v.root(r))
	}
	return cmp.Or(v.deeper(r, p), otherwise)
}

// sampled returns the age of a state that may have ended and begun again between two looks without a trace. If the time between
// two looks with the state is too long, the age begins at 0 again.
func (v *view) sampled(k waitKey, after time.Duration) time.Duration {
	const parts, periods = 3, 2
	if w := v.e.waits[k]; w != nil && v.Time.Sub(w.seen) > max(after/parts, periods*v.Period) {
		delete(v.e.waits, k)
	}
	return v.age(k, 0)
}

// stands reports whether the positions in the key k have not changed for the time after, while the end of the WAL has grown. The
// growth must have begun at least half of that time ago: a lag only because new WAL has just arrived does not count. It also
// returns how long the positions have not changed.
func (v *view) stands(k waitKey, after time.Duration) (age time.Duration, ok bool) {
	age = v.age(k, 0)
	switch w := v.e.waits[k]; {
	case w.end == 0:
		w.end = v.WAL.End
	case w.grew.IsZero() && v.WAL.End > w.end:
		w.grew = v.Time
	default:
		ok = !w.grew.IsZero() && age >= after && v.Time.Sub(w.grew) >= after/2-min(v.Period, after)/jitter // see age
	}
	return age, ok
}

// replays finds a standby that receives WAL and does not replay it. It returns no finding if all WAL is replayed, while no WAL
// arrives, or while recovery_min_apply_delay delays the replay.
func replays(v *view) []Finding {
	rule, ok := v.e.config.on(Replay)
	p := &v.WAL
	if !ok || !p.Known || !p.Recovery || p.Replayed == 0 || p.End <= p.Replayed {
		return nil
	}
	var startup *store.Row
	for i := range v.Rows {
		if r := &v.Rows[i]; !r.Ended && r.Type == "startup" {
			startup = r
		}
	}
	if startup != nil && startup.WaitEvent == "RecoveryApplyDelay" {
		return nil
	}
	age, ok := v.stands(waitKey{rule: Replay, proof: [4]int64{int64(p.Replayed)}}, rule.After)
	if !ok {
		return nil
	}
	w, cause, paused := longest{age: age}, "replay", ""
	if p.Paused {
		paused = ": it is paused"
	}
	if startup != nil {
		w.pids, cause = []int32{startup.PID}, v.causeOf(startup, v.Procs[startup.PID], cause)
	}
	f := v.finding(Replay, cause, fmt.Sprintf("replay has not advanced for %s, and its lag has grown to %s%s", units.Age(age),
		units.Size(p.End-p.Replayed), paused), &w)
	f.keys = []string{"replay"}
	return []Finding{f}
}

// walSenders finds receivers of WAL that confirm nothing while more WAL is written. For a physical receiver, sending is no
// progress: the WAL may wait in buffers of the network. A logical receiver makes progress as long as it answers or the WAL sender
// sends, since decoding of a large transaction takes long.
func walSenders(v *view) []Finding {
	rule, ok := v.e.config.on(WALSender)
	if !ok || !v.WAL.Known || v.WAL.End == 0 {
		return nil
	}
	var list []Finding
	for i := range v.WAL.Senders {
		s := &v.WAL.Senders[i]
		confirmed := s.Flush
		if confirmed == 0 {
			confirmed = s.Write
		}
		if confirmed == 0 || v.WAL.End <= confirmed {
			continue
		}
		k := waitKey{rule: WALSender, pid: s.PID, proof: [4]int64{int64(s.Write), int64(s.Flush), int64(s.Apply)}}
		if s.Logical {
			k.proof[2], k.proof[3] = int64(s.Sent), int64(s.Reply)
		}
		age, ok := v.stands(k, rule.After)
		if !ok {
			continue
		}
		own := fmt.Sprintf("WAL sender %d", s.PID)
		cause := own
		for j := range v.Rows {
			if r := &v.Rows[j]; !r.Ended && waitsForStandby(r) && blockedBy(r, s.PID) {
				cause = causeStandby
			}
		}
		f := v.finding(WALSender, cause, fmt.Sprintf("the receiver of WAL sender %d has confirmed nothing for %s, and its "+
			"lag has grown to %s", s.PID, units.Age(age), units.Size(v.WAL.End-confirmed)), &longest{pids: []int32{s.PID}, age: age})
		f.keys = []string{own}
		list = append(list, f)
	}
	return list
}

func blockedBy(r *store.Row, pid int32) bool {
	for i := range r.BlockedBy {
		if r.BlockedBy[i].PID == pid {
			return true
		}
	}
	return false
}
