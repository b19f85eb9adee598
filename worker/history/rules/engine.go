package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of an Engine's memory.
const (
	maxCauses    = 10_000
	maxProcesses = 200
	maxOpen      = 1000
	maxKeys      = 1000            // of an incident
	forgotten    = 5 * time.Minute // a wait that was not seen for so long has ended
	jitter       = 20              // looks may come early by this part of the period; see age
)

// Engine applies rules to one look after the other. It must be used by one goroutine at a time.
type Engine struct {
	config Config
	waits  map[waitKey]*wait
	causes map[string]time.Time // names of causes, and when a look lacked each first; zero: the last look had it, or proved nothing
	fired  []time.Time          // incidents of the last hour
	open   []stall              // incidents whose cause has not gone
	loops  map[loopKey]*loop
	next   time.Duration // until the time of a wait is over, after the last look; 0: there is none
	last   time.Time     // of the last look
	whole  bool          // the last look had all sessions
}

// waitKey is the identity of a wait.
type waitKey struct {
	rule  string
	pid   int32
	start int64
	proof [4]int64 // times or counts that differ between two waits of the process
	event string
}

// wait is a wait that lasts.
type wait struct {
	first time.Time
	base  time.Duration // its age at that time
	seen  time.Time
	end   uint64    // of the WAL at that time
	grew  time.Time // when the end of WAL was first seen to be another
	root  int32     // the process behind which it waited at the last look that had blockers; 0: not known
}

// stall is an incident whose cause lasts. Absent is when a look lacked it first after seen; zero: none did.
type stall struct {
	finding      Finding
	seen, absent time.Time
}

// Result has the findings of a look.
type Result struct {
	// New are the findings that are incidents.
	New []Finding
	// OverBudget are findings that would be incidents, but the hour already has as many as the budget allows.
	OverBudget []Finding
	// Ended are former incidents whose causes have been absent for the cool-down, in the order of their begin.
	Ended []Ended
}

// Ended is an incident that is over.
type Ended struct {
	Finding

	// Until is when the cause was seen last.
	Until time.Time
}

// New returns an engine.
func New(c Config) *Engine {
	return &Engine{config: c, waits: map[waitKey]*wait{}, causes: map[string]time.Time{}, loops: map[loopKey]*loop{}}
}

// Config returns the rules.
func (e *Engine) Config() Config { return e.config }

// Change replaces the rules. Waits and causes that are known stay.
func (e *Engine) Change(c Config) { e.config = c }

// Next returns how long after the last look the time of a rule is over for a wait that lasts; 0: there is no such wait. A look at
// that time finds it at once.
func (e *Engine) Next() time.Duration { return e.next }

// Known makes a cause an incident that has been reported at a time, such as before a restart of the worker.
func (e *Engine) Known(cause string, at time.Time) {
	if last, known := e.causes[cause]; !known || at.After(last) {
		e.causes[cause] = at
	}
}

// Look applies the rules.
func (e *Engine) Look(l *Look) Result {
	var found []Finding
	e.next = 0
	if !l.Unread {
		v := e.view(l)
		for _, rule := range []func(*view) []Finding{
			commitWaits, diskSleeps, lwlockWaits, idleBlocks, lockWaits, sameStacks, checkpoints, replays, walSenders, connections, archiving,
		} {
			found = append(found, rule(v)...)
		}
	}
	if r, ok := e.config.on(Starved); ok && l.Starved >= r.After {
		found = append(found, Finding{
			Rule: Starved, Cause: causeStarved, Since: l.Time.Add(-l.Starved),
			Summary: fmt.Sprintf("the worker was ready to run for %s and got no processor: the host is overloaded", units.Age(l.Starved)),
		})
	}
	merged := merge(found)
	result := e.choose(merged, l)
	result.Ended = e.end(merged, result.New, l)
	if !l.Unread && !l.Partial { // otherwise a session that is absent may still wait
		for k, w := range e.waits {
			if !w.seen.Equal(l.Time) {
				delete(e.waits, k)
			}
		}
	}
	for k, w := range e.waits {
		if l.Time.Sub(w.seen) > forgotten {
			delete(e.waits, k)
		}
	}
	e.last, e.whole = l.Time, !l.Unread && !l.Partial
	return result
}

// merge makes one finding of those with a common cause. The first of them counts, with the processes of all.
func merge(found []Finding) []Finding {
	var list []Finding
	owners := map[string]int{}
	for _, f := range found {
		f.keys = slices.DeleteFunc(append([]string{f.Cause}, f.keys...), func(k string) bool { return k == "" })
		i := len(list)
		for _, k := range f.keys {
			if j, ok := owners[k]; ok {
				i = min(i, j)
			}
		}
		for _, k := range f.keys {
			if _, ok := owners[k]; !ok {
				owners[k] = i
			}
		}
		if i == len(list) {
			list = append(list, f)
			continue
		}
		o := &list[i]
		o.keys = append(o.keys, f.keys...)
		for _, pid := range f.Processes {
			if len(o.Processes) < maxProcesses && !slices.Contains(o.Processes, pid) {
				o.Processes = append(o.Processes, pid)
			}
		}
	}
	return list
}

// choose returns the findings whose cause is new, within the budget. Only a look with all sessions proves that a cause is absent:
// while the worker does not look, a stall may well last.
func (e *Engine) choose(found []Finding, l *Look) (r Result) {
	now := l.Time
	for k, absent := range e.causes {
		if !absent.IsZero() && now.Sub(absent) >= e.config.Cooldown {
			delete(e.causes, k)
		}
	}
	present := map[string]bool{}
	e.fired = slices.DeleteFunc(e.fired, func(t time.Time) bool { return now.Sub(t) >= time.Hour })
	for i := range found {
		f := found[i]
		isKnown := func(k string) bool { _, ok := e.causes[k]; return ok }
		known := slices.ContainsFunc(f.keys, isKnown)
		for _, k := range f.keys {
			if present[k] = true; len(e.causes) < maxCauses || isKnown(k) {
				e.causes[k] = time.Time{}
			}
		}
		switch {
		case known:
		case len(e.fired) >= e.config.Budget:
			r.OverBudget = append(r.OverBudget, f)
		default:
			e.fired = append(e.fired, now)
			r.New = append(r.New, f)
		}
	}
	if !l.Unread && !l.Partial {
		for k, absent := range e.causes {
			if absent.IsZero() && !present[k] {
				e.causes[k] = now
			}
		}
	}
	return r
}

// renew notes which incidents a look has found again, with all keys of the findings.
func (e *Engine) renew(found []Finding, now time.Time) {
	owners := map[string]int{}
	for j := range found {
		for _, k := range found[j].keys {
			owners[k] = j
		}
	}
	for i := range e.open {
		o := &e.open[i]
		joined := map[int]bool{}
		known := make(map[string]bool, len(o.finding.keys))
		for _, k := range o.finding.keys {
			known[k] = true
			if j, ok := owners[k]; ok {
				joined[j] = true
			}
		}
		for j := range joined {
			o.seen, o.absent = now, time.Time{}
			for _, k := range found[j].keys {
				if len(o.finding.keys) < maxKeys && !known[k] {
					known[k] = true
					o.finding.keys = append(o.finding.keys, k)
				}
			}
		}
	}
}

// end returns the incidents that are over. An incident ends when its cause has been absent for the cool-down, because a cause
// that returns earlier is no new incident. A look that lacks sessions does not end any.
func (e *Engine) end(found, fired []Finding, l *Look) (ended []Ended) {
	e.renew(found, l.Time)
	for i := range fired {
		// The same cause can be new again after a time without whole looks. The new incident replaces the former one.
		same := func(o stall) bool { return o.finding.Rule == fired[i].Rule && o.finding.Cause == fired[i].Cause }
		if e.open = slices.DeleteFunc(e.open, same); len(e.open) < maxOpen {
			f := fired[i]
			f.keys = slices.Clone(f.keys)
			e.open = append(e.open, stall{finding: f, seen: l.Time})
		}
	}
	if l.Unread || l.Partial {
		return nil
	}
	for i := range e.open {
		if o := &e.open[i]; o.absent.IsZero() && !o.seen.Equal(l.Time) {
			o.absent = l.Time
		}
	}
	e.open = slices.DeleteFunc(e.open, func(o stall) bool {
		over := !o.absent.IsZero() && l.Time.Sub(o.absent) >= e.config.Cooldown
		if over {
			ended = append(ended, Ended{o.finding, o.seen})
		}
		return over
	})
	return ended
}

// view is a look with its sessions by process id.
type view struct {
	*Look

	e    *Engine
	rows map[int32]*store.Row
}

func (e *Engine) view(l *Look) *view {
	v := &view{Look: l, e: e, rows: make(map[int32]*store.Row, len(l.Rows))}
	for i := range l.Rows {
		if r := &l.Rows[i]; !r.Ended {
			v.rows[r.PID] = r
		}
	}
	return v
}

// age returns how long a wait has lasted. Begin is its start in microseconds since 1970 by the server's clock; 0: not
// known, then it begins when it is seen first. After the first look, time is measured by the monotonic clock. A wait that
// the last look did not have is not older than that look, whatever the wall clock says.
//
// A look comes some milliseconds early or late. So a wait that lacks a small part of the rule's time counts as complete: otherwise half of
// the waits without a known start would be found a period later.
func (v *view) age(k waitKey, begin int64) time.Duration {
	w := v.e.waits[k]
	if w == nil {
		w = &wait{first: v.Time}
		if begin > 0 {
			w.base = max(0, v.Time.Sub(time.UnixMicro(begin)))
		}
		if v.e.whole && !v.e.last.IsZero() {
			w.base = min(w.base, max(0, v.Time.Sub(v.e.last)))
		}
		v.e.waits[k] = w
	}
	w.seen = v.Time
	age := w.base + max(0, v.Time.Sub(w.first))
	if rule := v.e.config.Rule(k.rule); rule != nil && age < rule.After {
		left := rule.After - age
		if left <= min(v.Period, rule.After)/jitter {
			return rule.After
		}
		if v.e.next == 0 || left < v.e.next {
			v.e.next = left
		}
	}
	return age
}

// key returns the identity of what a session does under a rule.
func key(rule string, r *store.Row, proof ...int64) waitKey {
	k := waitKey{rule: rule, pid: r.PID, start: r.Start, event: r.WaitType + ":" + r.WaitEvent}
	copy(k.proof[:], proof)
	return k
}

// transaction is the identity of a wait that each transaction or statement has at most once.
func transaction(rule string, r *store.Row) waitKey {
	return key(rule, r, r.XactStart, r.QueryStart, r.StateStart)
}

// longest collects the sessions of one finding.
type longest struct {
	pids []int32
	age  time.Duration
}

func (w *longest) add(pid int32, age time.Duration) {
	if len(w.pids) < maxProcesses {
		w.pids = append(w.pids, pid)
	}
	w.age = max(w.age, age)
}

func (v *view) finding(rule, cause, summary string, w *longest) Finding {
	return Finding{Rule: rule, Cause: cause, Summary: summary, Since: v.Time.Add(-w.age), Processes: w.pids}
}

func commitWaits(v *view) []Finding {
	rule, ok := v.e.config.on(CommitWait)
	if !ok {
		return nil
	}
	var w longest
	for i := range v.Rows {
		r := &v.Rows[i]
		if r.Ended || !waitsForStandby(r) {
			continue
		}
		if age := v.age(transaction(CommitWait, r), 0); age >= rule.After {
			w.add(r.PID, age)
		}
	}
	if len(w.pids) == 0 {
		return nil
	}
	reason := ""
	if v.Standbys != "" {
		reason = ": " + v.Standbys
	}
	return []Finding{v.finding(CommitWait, causeStandby, fmt.Sprintf("%s for a synchronous standby, the longest for %s%s",
		plural(len(w.pids), "commit waits", "commits wait"), units.Age(w.age), reason), &w)}
}

const (
	causeStandby     = "standby"
	causeDisk        = "uninterruptible sleep"
	causeStarved     = "starved"
	causeConnections = "connections"
	// identityFormat has the process id, its start and the start of its transaction, in microseconds since 1970.
	identityFormat = "process %d of %d, transaction of %d"
)

func waitsForStandby(r *store.Row) bool {
	return r.WaitType == "IPC" && strings.EqualFold(r.WaitEvent, "SyncRep")
}

func diskSleeps(v *view) []Finding {
	rule, ok := v.e.config.on(DiskSleep)
	if !ok {
		return nil
	}
	var w longest
	for i := range v.Rows {
		r := &v.Rows[i]
		p, known := v.Procs[r.PID]
		if r.Ended || !known || p.State != 'D' {
			continue
		}
		if age := v.age(diskKey(r, p), 0); age >= rule.After {
			w.add(r.PID, age)
		}
	}
	if len(w.pids) == 0 {
		return nil
	}
	return []Finding{v.finding(DiskSleep, causeDisk, fmt.Sprintf("%s in uninterruptible sleep, the longest for %s: a disk or a "+
		"network file system does not answer", plural(len(w.pids), "process is", "processes are"), units.Age(w.age)), &w)}
}

func lwlockWaits(v *view) []Finding {
	rule, ok := v.e.config.on(LWLockWait)
	if !ok {
		return nil
	}
	byEvent := map[string]*longest{}
	for i := range v.Rows {
		r := &v.Rows[i]
		p, known := v.Procs[r.PID]
		if r.Ended || r.WaitType != "LWLock" || !known || !p.sleeps() {
			continue
		}
		if age := v.age(key(LWLockWait, r, int64(p.Switches)), 0); age >= rule.After {
			w := byEvent[r.WaitEvent]
			if w == nil {
				w = &longest{}
				byEvent[r.WaitEvent] = w
			}
			w.add(r.PID, age)
		}
	}
	var list []Finding
	for event, w := range byEvent {
		list = append(list, v.finding(LWLockWait, causeLWLock(event),
			fmt.Sprintf("%s for an LWLock without running meanwhile, the longest for %s",
				plural(len(w.pids), "session waits", "sessions wait"), units.Age(w.age)), w))
	}
	slices.SortFunc(list, func(a, b Finding) int { return strings.Compare(a.Cause, b.Cause) })
	return list
}

func causeLWLock(event string) string { return "LWLock " + event }

// idleBlocks finds sessions that are idle in transaction and block others. The time counts from when both became true.
func idleBlocks(v *view) []Finding {
	rule, ok := v.e.config.on(IdleBlocks)
	if !ok {
		return nil
	}
	type block struct {
		waiters []int32
		since   int64 // the oldest wait
	}
	blocks := map[int32]*block{}
	for i := range v.Rows {
		r := &v.Rows[i]
		for j := range r.BlockedBy {
			b := &r.BlockedBy[j]
			root := v.rows[b.PID]
			if r.Ended || b.Soft || root == nil || !strings.HasPrefix(root.State, "idle in transaction") {
				continue
			}
			w := blocks[b.PID]
			if w == nil {
				w = &block{}
				blocks[b.PID] = w
			}
			if len(w.waiters) < maxProcesses {
				w.waiters = append(w.waiters, r.PID)
			}
			if r.WaitStart > 0 && (w.since == 0 || r.WaitStart < w.since) {
				w.since = r.WaitStart
			}
		}
	}
	for i := range v.Rows { // sessions that wait behind another waiting session
		r := &v.Rows[i]
		if r.Ended || len(r.BlockedBy) == 0 || len(blocks) == 0 {
			continue
		}
		if w := blocks[v.root(r)]; w != nil && len(w.waiters) < maxProcesses && !slices.Contains(w.waiters, r.PID) {
			w.waiters = append(w.waiters, r.PID)
		}
	}
	var list []Finding
	for _, pid := range sorted(blocks) {
		w, root := blocks[pid], v.rows[pid]
		age := v.age(transaction(IdleBlocks, root), max(w.since, root.StateStart))
		if age < rule.After {
			continue
		}
		list = append(list, Finding{
			Rule: IdleBlocks, Cause: v.cause(pid), keys: []string{v.identity(pid)}, Root: pid,
			Processes: append([]int32{pid}, w.waiters...), Since: v.Time.Add(-age),
			Summary: fmt.Sprintf("process %d is idle in transaction and has blocked %s for %s", pid,
				plural(len(w.waiters), "session", "sessions"), units.Age(age)),
		})
	}
	return list
}

// lockWaits finds sessions that wait for a lock, by the process behind which they wait.
func lockWaits(v *view) []Finding {
	rule, ok := v.e.config.on(LockWait)
	if !ok {
		return nil
	}
	// The waits are keys too: when a holder ends, the next session in the queue holds the lock, and the others wait on.
	byRoot, objects, ongoing := map[int32]*longest{}, map[int32][]string{}, map[int32][]string{}
	for i := range v.Rows {
		r := &v.Rows[i]
		if r.Ended || r.WaitType != "Lock" {
			continue
		}
		k := key(LockWait, r, r.WaitStart)
		if r.WaitStart == 0 {
			k = transaction(LockWait, r)
		}
		age := v.age(k, r.WaitStart)
		if age < rule.After {
			continue
		}
		root := v.root(r)
		if known := v.e.waits[k]; root == unknownProcess {
			root = cmp.Or(known.root, root) // the locks could not be read at this look
		} else if root > 0 {
			known.root = root
		}
		w := byRoot[root]
		if w == nil {
			w = &longest{}
			byRoot[root] = w
		}
		w.add(r.PID, age)
		if n := len(ongoing[root]); n < maxProcesses {
			ongoing[root] = append(ongoing[root], fmt.Sprint("wait of ", k.pid, " of ", k.start, " since ", k.proof))
		}
		if o := objectOf(r); o != "" && !slices.Contains(objects[root], o) && len(objects[root]) < maxProcesses {
			objects[root] = append(objects[root], o)
		}
	}
	var list []Finding
	for _, root := range sorted(byRoot) {
		w := byRoot[root]
		behind := fmt.Sprintf("behind process %d", root)
		switch root {
		case noProcess:
			behind = "behind a prepared transaction"
		case unknownProcess:
			behind = "whose holder is not known"
		}
		f := v.finding(LockWait, v.cause(root), fmt.Sprintf("%s for a lock %s, the longest for %s",
			plural(len(w.pids), "session waits", "sessions wait"), behind, units.Age(w.age)), w)
		if f.keys = objects[root]; root > 0 {
			f.keys = append(f.keys, v.identity(root))
			f.Root, f.Processes = root, append([]int32{root}, slices.DeleteFunc(f.Processes, func(p int32) bool { return p == root })...)
		}
		f.keys = append(f.keys, ongoing[root]...)
		list = append(list, f)
	}
	return list
}

// objectOf returns a name of the object that a session waits for, if others can wait for it after its holder has gone. An
// object that belongs to one transaction is none.
func objectOf(r *store.Row) string {
	if len(r.BlockedBy) == 0 {
		return ""
	}
	b := &r.BlockedBy[0]
	switch b.Lock {
	case "", "transactionid", "virtualxid", "spectoken", "applytransaction":
		return ""
	}
	return "object " + moment.WithoutName(b.Object)
}

const (
	noProcess      = 0  // a prepared transaction
	unknownProcess = -1 // a wait whose blockers are not known
)

// root returns the process at the begin of the chain of waits: it holds the lock, or it is the smallest of a deadlock. If
// several processes hold it, the one with the oldest transaction counts.
func (v *view) root(r *store.Row) int32 {
	if len(r.BlockedBy) == 0 {
		return unknownProcess
	}
	path := []int32{r.PID}
	for {
		next := v.holder(r)
		if i := slices.Index(path, next); i >= 0 {
			return slices.Min(path[i:])
		}
		path = append(path, next)
		if r = v.rows[next]; r == nil || len(r.BlockedBy) == 0 {
			return next
		}
	}
}

// holder returns the process that a session waits for.
func (v *view) holder(r *store.Row) int32 {
	best := &r.BlockedBy[0]
	oldest := int64(0)
	for i := range r.BlockedBy {
		b := &r.BlockedBy[i]
		row := v.rows[b.PID]
		if b.Soft != r.BlockedBy[0].Soft || row == nil || row.XactStart == 0 {
			continue
		}
		if oldest == 0 || row.XactStart < oldest || row.XactStart == oldest && b.PID < best.PID {
			best, oldest = b, row.XactStart
		}
	}
	return best.PID
}

// cause names what a process at the begin of a chain of waits does: if it waits for something itself, that is the cause.
func (v *view) cause(root int32) string {
	r := v.rows[root]
	switch {
	case root == noProcess:
		return "prepared transaction"
	case root == unknownProcess:
		return "unknown holder"
	case r == nil:
		return "process " + strconv.Itoa(int(root))
	}
	return cmp.Or(v.deeper(r, v.Procs[root]), v.identity(root))
}

// identity names the transaction of a process; empty: the look does not have it. A finding has it as a key beside its cause, which may
// change: a process that holds a lock may sleep in the kernel at one look and run at the next.
func (v *view) identity(pid int32) string {
	r := v.rows[pid]
	if r == nil {
		return ""
	}
	return fmt.Sprintf(identityFormat, r.PID, r.Start, r.XactStart)
}

// deeper returns the cause for which a process does not advance, if that has lasted for more than one look; empty: there is none.
// Each process waits for a disk or an LWLock at times.
func (v *view) deeper(r *store.Row, p Proc) string {
	lasts := func(k waitKey) bool { return v.age(k, 0) > 0 }
	switch {
	case waitsForStandby(r) && lasts(transaction(CommitWait, r)):
		return causeStandby
	case p.State == 'D' && lasts(diskKey(r, p)):
		return causeDisk
	case r.WaitType == "LWLock" && p.sleeps() && lasts(key(LWLockWait, r, int64(p.Switches))):
		return causeLWLock(r.WaitEvent)
	}
	return ""
}

// diskKey is the identity of an uninterruptible sleep. The wait event may change its name by itself, but not without a run.
func diskKey(r *store.Row, p Proc) waitKey {
	k := key(DiskSleep, r, int64(p.Switches))
	k.event = ""
	return k
}

func connections(v *view) []Finding {
	const percent = 100
	rule, ok := v.e.config.on(Connections)
	if !ok || v.Slots <= 0 || v.Clients*percent <= v.Slots*rule.Above {
		return nil
	}
	return []Finding{{
		Rule: Connections, Cause: causeConnections, Since: v.Time,
		Summary: fmt.Sprintf("%d of %d connection slots are in use", v.Clients, v.Slots),
	}}
}

// archiving finds a file that the archiver cannot archive. The name of the file identifies the stall: an archiver archives a file
// once. Between two runs of the archiver, a look proves nothing.
func archiving(v *view) []Finding {
	rule, ok := v.e.config.on(Archiver)
	if !ok || v.Archiver.Done {
		return nil
	}
	if v.Archiver.File == "" {
		for k, w := range v.e.waits {
			if k.rule == Archiver {
				w.seen = v.Time
			}
		}
		return nil
	}
	age := v.age(waitKey{rule: Archiver, event: v.Archiver.File}, 0)
	if age < rule.After {
		return nil
	}
	return []Finding{{
		Rule: Archiver, Cause: "archiver", Since: v.Time.Add(-age), Processes: []int32{v.Archiver.PID},
		Summary: fmt.Sprintf("the archiver has not archived %s for %s: pg_wal grows", v.Archiver.File, units.Age(age)),
	}}
}

func sorted[T any](m map[int32]T) []int32 {
	keys := make([]int32, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}
