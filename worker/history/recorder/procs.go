package recorder

import (
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/locks"
	"pg_stat_backtrace/worker/pg/state"
)

// look returns the data of a sweep that the rules use. delay is the time by which the sweep is late, and err is the error of
// reading the sessions.
func (r *Recorder) look(now time.Time, delay time.Duration, s *seen, err error) *rules.Look {
	l := &rules.Look{Time: now, Period: r.cost.period, Starved: max(r.starved(delay), r.throttled), Unread: err != nil}
	if err != nil {
		return l
	}
	l.Rows, l.Procs, l.Partial = s.rows, s.procs, s.partial
	l.Slots = r.slots
	l.Standbys, l.Unknown = locks.Standbys(s.waits), unknownBlockers(s.waits)
	if r.stacks != nil {
		l.Stacks = r.stacks.fresh
	}
	replicates := false
	for i := range s.moment.Sessions {
		switch session := &s.moment.Sessions[i]; session.Type {
		case state.ClientBackend:
			l.Clients++
		case state.Archiver:
			l.Archiver = archiving(int32(session.ServerPID), cluster.Title(session.PID))
		case checkpointer:
			l.Checkpointer = r.checkpointing(session, s)
		case "walsender", "startup":
			replicates = true
		}
	}
	if replicates {
		l.WAL = r.positions(s.moment)
	}
	return l
}

// unknownBlockers returns the reasons why blockers are not known, by the process id of the waiter.
func unknownBlockers(waits map[int]*locks.Wait) map[int32]string {
	found := map[int32]string{}
	for pid, w := range waits {
		if w.Reason != "" && w.Kind != locks.LWLock && !w.Changed {
			found[int32(pid)] = w.Reason
		}
	}
	return found
}

const checkpointer = "checkpointer"

// checkpointing describes the work of the checkpointer. The result is zero if the checkpointer is idle and no session waits for it.
func (r *Recorder) checkpointing(c *moment.Session, s *seen) rules.Checkpointing {
	busy := slices.ContainsFunc(s.rows, func(row store.Row) bool {
		return !row.Ended && (row.PID == int32(c.ServerPID) || row.WaitType == "IPC" && strings.HasPrefix(row.WaitEvent, "Checkpoint"))
	})
	st, err := process.ReadStatus(c.PID)
	if !busy || err != nil {
		return rules.Checkpointing{}
	}
	return rules.Checkpointing{
		PID:  int32(c.ServerPID),
		Proc: rules.Proc{State: st.State, Switches: st.VoluntarySwitches + st.InvoluntarySwitches},
		Work: r.state.CheckpointWork(c.PID), IO: ioCounts(c.PID),
	}
}

// ioCounts returns a value that changes each time the process reads or writes; 0: not known.
func ioCounts(pid int) uint64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil || len(text) == 0 {
		return 0
	}
	hash := fnv.New64a()
	_, _ = hash.Write(text)
	return hash.Sum64() | 1
}

// positions returns the positions in the WAL of the server and of its WAL senders. Known is false if they cannot be read.
func (r *Recorder) positions(m *moment.Moment) (w rules.Positions) {
	p, err := r.state.Positions(r.locks, func(pid int) bool {
		return slices.ContainsFunc(m.Sessions, func(s moment.Session) bool { return s.ServerPID == pid && s.DatabaseOID != 0 })
	})
	if err != nil {
		return w
	}
	w = rules.Positions{Known: true, Recovery: p.Recovery, End: p.End, Replayed: p.Replayed, Paused: p.Paused}
	for _, s := range p.Senders {
		w.Senders = append(w.Senders, rules.Sender{
			PID: int32(s.PID), Logical: s.Logical, Sent: s.Sent, Write: s.Write, Flush: s.Flush, Apply: s.Apply, Reply: s.Reply,
		})
	}
	return w
}

// archiving parses the title of the archiver process, in which the server shows the file. The result is zero if the title has
// another form, for example because update_process_title is off.
func archiving(pid int32, title string) rules.Archiving {
	const verbs = 2
	words := strings.Fields(title)
	n := len(words)
	if n <= verbs || !strings.Contains(title, state.Archiver) || !segment(words[n-1]) {
		return rules.Archiving{}
	}
	switch file := words[n-1]; {
	case words[n-2] == "archiving", words[n-3] == "failed" && words[n-2] == "on":
		return rules.Archiving{PID: pid, File: file}
	case words[n-3] == "last" && words[n-2] == "was":
		return rules.Archiving{PID: pid, Done: true}
	}
	return rules.Archiving{}
}

// segment reports whether a text can be the name of an archived file: all these names begin with a timeline id.
func segment(name string) bool {
	const digits, longest = 8, 64
	if len(name) < digits || len(name) > longest {
		return false
	}
	return strings.Trim(name[:digits], "0123456789ABCDEF") == ""
}

// procs returns the kernel's state of the processes of the rows, by the server's process id. It omits processes at rest (see
// atRest).
func (r *Recorder) procs(rows []store.Row, sessions []moment.Session) map[int32]rules.Proc {
	local := make(map[int32]int, len(sessions))
	for i := range sessions {
		local[int32(sessions[i].ServerPID)] = sessions[i].PID
	}
	found := make(map[int32]rules.Proc, len(rows))
	for i := range rows {
		pid := local[rows[i].PID]
		if pid == 0 || rows[i].Ended || atRest(&rows[i]) {
			continue
		}
		if p, ok := r.statuses.read(identity{rows[i].PID, rows[i].Start}, pid); ok {
			found[rows[i].PID] = p
		}
	}
	r.statuses.end()
	return found
}

// atRest reports whether a session waits for its client without a statement, or is a background process that waits for work.
func atRest(r *store.Row) bool {
	return r.WaitType == "Activity" || r.WaitType == "Client" && r.State != "active" && r.State != "disabled"
}

// starved returns how long this worker was ready to run but had no processor, since the last call of starved; 0: not known. A sweep
// that is late by the time delay is no proof: the worker may have been stopped (SIGSTOP, a frozen control group). So the delay
// counts only as far as a thread of the worker has waited for a processor meanwhile, or a quota has stopped the worker.
func (r *Recorder) starved(delay time.Duration) time.Duration {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	before, throttledBefore := r.waited, r.stopped
	r.waited, r.stopped = make(map[string]time.Duration, len(tasks)), process.Throttled()
	longest := time.Duration(0)
	for _, task := range tasks {
		tid := task.Name()
		_, r.waited[tid] = schedstat("/proc/self/task/" + tid + "/schedstat")
		longest = max(longest, r.waited[tid]-before[tid])
	}
	own := strconv.Itoa(unix.Gettid())
	switch {
	case before == nil:
		return 0
	case r.stopped >= throttledBefore: // else the worker has changed its control group
		delay = min(delay, longest+r.stopped-throttledBefore)
	}
	return max(r.waited[own]-before[own], delay)
}

// ran returns the time for which a process was on processors since its start; 0: not known.
func ran(pid int) time.Duration {
	ran, _ := schedstat("/proc/" + strconv.Itoa(pid) + "/schedstat")
	return ran
}

// schedstat returns the times for which a thread was on processors, and waited for a processor, since its start; 0: not known.
func schedstat(file string) (ran, waited time.Duration) {
	text, err := os.ReadFile(file)
	fields := strings.Fields(string(text))
	const least = 2
	if err != nil || len(fields) < least {
		return 0, 0
	}
	values := [least]int64{}
	for i := range values {
		if values[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return 0, 0
		}
	}
	return time.Duration(values[0]), time.Duration(values[1])
}

// Snapshot reads the sessions once, as a sweep does, but writes nothing. It returns them with notes on missing parts. Rows have the
// texts that the options allow. No file of a process stays open.
func (r *Recorder) Snapshot(now time.Time) (*rules.Look, []string, error) {
	if r.o.Watch == nil {
		r.o.Watch = func(*rules.Look) {} // without Watch, read would omit the processes
	}
	defer r.statuses.close()
	saw, err := r.read(now)
	if err != nil {
		return nil, nil, err
	}
	return r.look(now, 0, &saw, nil), saw.notes, nil
}
