package rules

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
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
	maxKeys      = 1000            // keys (Finding.keys) of an incident
	forgotten    = 5 * time.Minute // a wait that no look has found for this time is regarded as ended
	jitter       = 20              // a look may be early by the period divided by jitter; see view.age
)

// Engine applies the rules to a sequence of looks. It must be used by one goroutine at a time.
type Engine struct {
	config Config
	waits  map[waitKey]*wait
	causes map[string]cause // by key
	fired  []firing         // incidents of the last hour
	open   []stall          // incidents that have not ended
	loops  map[loopKey]*loop
	next   time.Duration // from the last look until a wait reaches the time of its rule; 0: there is no such wait
	last   time.Time     // time of the last look
	whole  bool          // the last look was complete: it had all sessions
}

// waitKey is the identity of a wait.
type waitKey struct {
	rule  string
	pid   int32
	start int64
	proof [4]int64 // times or numbers that are equal only during the same wait
	event string
}

type wait struct {
	first time.Time     // the first look with the wait
	base  time.Duration // age of the wait at the look first
	seen  time.Time     // the last look with the wait
	end   uint64        // end of the WAL when the method stands was first called for this wait
	grew  time.Time     // the first look at which the WAL was longer than end; zero: none
	root  int32         // result of view.root at the last look that had the blockers; 0: not known
}

// cause is the state of a cause. absent is the first complete look without it; zero: the last look had it. late means that its finding
// is no incident yet, because the budget had no room.
type cause struct {
	absent time.Time
	late   bool
}

// firing is an incident of the last hour.
type firing struct {
	at   time.Time
	role uint32 // Finding.role
}

// stall is an incident that has not ended. seen is the last look with its cause. absent is the first complete look after seen
// without the cause; zero: there is none.
type stall struct {
	finding      Finding
	seen, absent time.Time
}

// Result has the findings of a look.
type Result struct {
	// New are the new incidents.
	New []Finding
	// OverBudget are findings that are no incidents because the incidents of the last hour leave no room in Config.Budget. Each is in one
	// result only. If it lasts until there is room, it is an incident then.
	OverBudget []Finding
	// Ended are former incidents whose causes have been absent for Config.Cooldown, the earliest begun first.
	Ended []Ended
}

// Ended is an incident that has ended.
type Ended struct {
	Finding

	// Until is the time of the last look that had the cause.
	Until time.Time
}

// New returns an engine.
func New(c Config) *Engine {
	return &Engine{config: c, waits: map[waitKey]*wait{}, causes: map[string]cause{}, loops: map[loopKey]*loop{}}
}

// Config returns the rules.
func (e *Engine) Config() Config { return e.config }

// Change replaces the rules. The engine keeps the waits and causes that it knows.
func (e *Engine) Change(c Config) { e.config = c }

// Next returns the time from the last look until the first current wait reaches the time of its rule (Rule.After); 0: there is no
// such wait. A look at that time finds the incident without delay.
func (e *Engine) Next() time.Duration { return e.next }

// Known makes the engine regard a cause (Finding.Cause) as an incident that lasted until the time at, such as before a restart of the
// worker. The cause is no new incident until Config.Cooldown has passed after at.
func (e *Engine) Known(name string, at time.Time) {
	if last, known := e.causes[name]; !known || at.After(last.absent) {
		e.causes[name] = cause{absent: at}
	}
}

// Look applies the rules to a look, and returns the incidents that begin or end.
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
	if !l.Unread && !l.Partial { // in a partial look, a session that could not be read may still wait
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

// merge merges the findings that have a key in common. The result is the first of these findings, with the keys and processes of
// all.
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

// choose returns the findings whose cause is new, within the budget. Only a look with all sessions can show that a cause is absent. A
// finding for which the budget has no room becomes an incident as soon as there is room, if no other incident has got its cause
// meanwhile.
func (e *Engine) choose(found []Finding, l *Look) (r Result) {
	now := l.Time
	for k, c := range e.causes {
		if !c.absent.IsZero() && now.Sub(c.absent) >= e.config.Cooldown {
			delete(e.causes, k)
		}
	}
	present := map[string]bool{}
	e.fired = slices.DeleteFunc(e.fired, func(f firing) bool { return now.Sub(f.at) >= time.Hour })
	for i := range found {
		f := found[i]
		known, incident := false, false
		for _, k := range f.keys {
			c, ok := e.causes[k]
			known, incident = known || ok, incident || ok && !c.late
		}
		late := !incident && !e.room(f.role)
		for _, k := range f.keys {
			present[k] = true
			if _, ok := e.causes[k]; ok || len(e.causes) < maxCauses {
				e.causes[k] = cause{late: late}
			}
		}
		switch {
		case !incident && !late:
			e.fired = append(e.fired, firing{now, f.role})
			r.New = append(r.New, f)
		case !known:
			r.OverBudget = append(r.OverBudget, f)
		}
	}
	if !l.Unread && !l.Partial {
		for k, c := range e.causes {
			if c.absent.IsZero() && !present[k] {
				c.absent = now
				e.causes[k] = c
			}
		}
	}
	return r
}

// room reports whether the budget has room for an incident. The sessions of one role get at most half of it, and those of all roles
// three quarters. The rest is for causes that belong to no role, such as the archiver or a disk.
func (e *Engine) room(role uint32) bool {
	own, roles, all := 0, 0, e.config.Budget
	for _, f := range e.fired {
		if f.role != 0 {
			roles++
		}
		if f.role == role {
			own++
		}
	}
	return len(e.fired) < all && (role == 0 || own < (all+1)/2 && roles < all-all/4)
}

// renew updates the open incidents whose causes are in a look again: the time seen, the time absent, and the keys.
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

// end returns the incidents that have ended. An incident ends when its cause has been absent for Config.Cooldown, because a cause
// that returns earlier is no new incident. A look without all sessions ends no incident.
func (e *Engine) end(found, fired []Finding, l *Look) (ended []Ended) {
	e.renew(found, l.Time)
	for i := range fired {
		// After some time without complete looks, the cause of an open incident can count as a new one. The new incident then
		// replaces the former one.
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

// age returns how long a wait has lasted, and notes that this look has the wait. begin is the wait's start in microseconds since
// 1970 by the server's clock; 0: not known, the wait then begins at the first look that has it. After the first look, the monotonic
// clock measures the time. If the look before was complete and did not have the wait, the wait counts as begun after that look,
// whatever the wall clock says.
//
// A look comes some milliseconds early or late. So if only a small part of the period (see jitter) is missing until Rule.After, age
// returns Rule.After. Otherwise half of the waits without a known start would be found a period later.
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

// key returns the identity of a session's wait for a rule. proof has up to four values that are equal only during the same wait.
func key(rule string, r *store.Row, proof ...int64) waitKey {
	k := waitKey{rule: rule, pid: r.PID, start: r.Start, event: r.WaitType + ":" + r.WaitEvent}
	copy(k.proof[:], proof)
	return k
}

// transaction returns the identity of a wait that occurs at most once in a statement, or in an idle transaction.
func transaction(rule string, r *store.Row) waitKey {
	return key(rule, r, r.XactStart, r.QueryStart, r.StateStart)
}

// longest collects the sessions of one finding, and the age of the longest wait.
type longest struct {
	pids []int32 // at most maxProcesses
	n    int     // number of all sessions
	age  time.Duration
}

func (w *longest) add(pid int32, age time.Duration) {
	w.n++
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
	if w.n == 0 {
		return nil
	}
	reason := ""
	if v.Standbys != "" {
		reason = ": " + v.Standbys
	}
	return []Finding{v.finding(CommitWait, causeStandby, fmt.Sprintf("%s for a synchronous standby, the longest for %s%s",
		units.Plural(w.n, "%d {commit waits|commits wait}"), units.Age(w.age), reason), &w)}
}

const (
	causeStandby     = "standby"
	causeDisk        = "uninterruptible sleep"
	causeStarved     = "starved"
	causeConnections = "connections"
	// identityFormat has the process id, the start of the process, and the start of its transaction. The starts are in
	// microseconds since 1970.
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
	if w.n == 0 {
		return nil
	}
	return []Finding{v.finding(DiskSleep, causeDisk, fmt.Sprintf("%s in uninterruptible sleep, the longest for %s: a disk or a "+
		"network file system does not answer", units.Plural(w.n, "%d {process is|processes are}"), units.Age(w.age)), &w)}
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
		event := lwlock(r)
		if r.Ended || event == "" || !known || !p.sleeps() {
			continue
		}
		if age := v.age(key(LWLockWait, r, int64(p.Switches)), 0); age >= rule.After {
			w := byEvent[event]
			if w == nil {
				w = &longest{}
				byEvent[event] = w
			}
			w.add(r.PID, age)
		}
	}
	var list []Finding
	for event, w := range byEvent {
		list = append(list, v.finding(LWLockWait, causeLWLock(event),
			fmt.Sprintf("%s for an LWLock without running meanwhile, the longest for %s",
				units.Plural(w.n, "%d {session waits|sessions wait}"), units.Age(w.age)), w))
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return strings.Compare(a.Cause, b.Cause) < 0
	})
	return list
}

// lwlock returns the name of the LWLock that a session waits for; empty: it waits for none. From PostgreSQL 19 on, the lock of a
// buffer's content has events of the type Buffer, one for each mode. In this type, BufferCleanup is the wait for a buffer pin.
func lwlock(r *store.Row) string {
	switch {
	case r.WaitType == "LWLock":
		return r.WaitEvent
	case r.WaitType == "Buffer" && r.WaitEvent != "BufferCleanup":
		return "BufferContent"
	}
	return ""
}

func causeLWLock(event string) string { return "LWLock " + event }

// idleBlocks finds sessions that are idle in transaction and block others. The age is counted from the time at which both the
// session was idle and the oldest known wait for it had begun.
func idleBlocks(v *view) []Finding {
	rule, ok := v.e.config.on(IdleBlocks)
	if !ok {
		return nil
	}
	type block struct {
		waiters longest // without age
		since   int64   // start of the oldest wait; 0: not known
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
			w.waiters.add(r.PID, 0)
			if r.WaitStart > 0 && (w.since == 0 || r.WaitStart < w.since) {
				w.since = r.WaitStart
			}
		}
	}
	for i := range v.Rows { // add the sessions that wait for the idle session through other waiting sessions
		r := &v.Rows[i]
		if r.Ended || len(r.BlockedBy) == 0 || len(blocks) == 0 {
			continue
		}
		root := v.root(r)
		counted := func(b store.Blocker) bool { return b.PID == root && !b.Soft }
		if w := blocks[root]; w != nil && !slices.ContainsFunc(r.BlockedBy, counted) {
			w.waiters.add(r.PID, 0)
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
			Rule: IdleBlocks, Cause: v.cause(pid), keys: []string{v.identity(pid)}, role: root.UserID, Root: pid,
			Processes: append([]int32{pid}, w.waiters.pids...), Since: v.Time.Add(-age),
			Summary: fmt.Sprintf("process %d is idle in transaction and has blocked %s for %s", pid,
				units.Plural(w.waiters.n, "%d {session|sessions}"), units.Age(age)),
		})
	}
	return list
}

// lockWaits finds sessions that wait for a lock. It returns one finding for each process at the begin of a chain of waits (see
// view.root).
func lockWaits(v *view) []Finding {
	rule, ok := v.e.config.on(LockWait)
	if !ok {
		return nil
	}
	// The identities of the waits are keys too, so that the incident stays the same when the holder ends: the next session in the
	// queue then holds the lock, and the others wait for that session.
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
			root = cmp.Or(known.root, root) // this look has no blockers of the wait: use the last known root
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
			units.Plural(w.n, "%d {session waits|sessions wait}"), behind, units.Age(w.age)), w)
		f.role = v.rows[w.pids[0]].UserID // without a process at the begin, such as behind a prepared transaction
		if holder := v.rows[root]; holder != nil {
			f.role = holder.UserID
		}
		if f.keys = objects[root]; root > 0 {
			f.keys = append(f.keys, v.identity(root))
			f.Root, f.Processes = root, append([]int32{root}, slices.DeleteFunc(f.Processes, func(p int32) bool { return p == root })...)
		}
		f.keys = append(f.keys, ongoing[root]...)
		list = append(list, f)
	}
	return list
}

// objectOf returns a text that identifies the locked object that a session waits for. It returns "" if the object is not known, or
// if the object exists only as long as the transaction that holds it, such as a transaction id.
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

// root returns the process at the begin of the chain of waits: the process that holds the lock and waits for none. In a deadlock it
// is the smallest process id. If several processes hold a lock, the chain continues at the process with the oldest transaction.
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

// holder returns the process that a session waits for. If it waits for several, holder returns the one with the oldest transaction.
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

// cause returns the Finding.Cause for a process at the begin of a chain of waits: the cause why this process itself does not
// advance (see deeper) or, if there is none, the identity of its transaction.
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

// identity returns a text that identifies the transaction of a process; empty: the look does not have the process. It is a key of
// the finding besides the cause, because the cause may change: a process that holds a lock may sleep in the kernel at one look and
// run at the next.
func (v *view) identity(pid int32) string {
	r := v.rows[pid]
	if r == nil {
		return ""
	}
	return fmt.Sprintf(identityFormat, r.PID, r.Start, r.XactStart)
}

// deeper returns the cause why a process that blocks others does not advance itself: it waits for a standby, a disk or an LWLock.
// The wait must have lasted for more than one look, since each process waits for a short time now and then. Empty: there is no such
// wait.
func (v *view) deeper(r *store.Row, p Proc) string {
	lasts := func(k waitKey) bool { return v.age(k, 0) > 0 }
	switch {
	case waitsForStandby(r) && lasts(transaction(CommitWait, r)):
		return causeStandby
	case p.State == 'D' && lasts(diskKey(r, p)):
		return causeDisk
	case lwlock(r) != "" && p.sleeps() && lasts(key(LWLockWait, r, int64(p.Switches))):
		return causeLWLock(lwlock(r))
	}
	return ""
}

// diskKey returns the identity of an uninterruptible sleep. The identity has no wait event, because the number of context switches
// identifies the sleep.
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

// archiving finds a file that the archiver cannot archive. The name of the file identifies the incident, since the archiver
// archives a file only once. If a look does not show the file, for example between two attempts, the age continues.
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
