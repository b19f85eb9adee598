package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/units"
)

// The rules. The sentence of a finding states only facts that the newest samples prove.
const (
	RuleBlocks      = "blocks-sessions"
	RuleDeadlock    = "deadlock"
	RulePin         = "buffer-pin"
	RuleConnections = "connections"
	RuleSyncRep     = "synchronous-standby"
	RuleWAL         = "wal-to-disk"
	RuleEvent       = "wait-event"
	RuleProcessors  = "processors"
	RuleDisk        = "uninterruptible"
	RuleIdleInTx    = "idle-in-transaction"
	RuleStatement   = "one-statement"
	RuleMemory      = "memory"
	RuleReplay      = "replay"
)

// Thresholds of the rules.
const (
	usedConnections = 0.9              // part of max_connections in use
	fewestWaiters   = 4                // sessions at one wait event, and
	waitersShare    = 0.3              // their part of the active sessions
	samplesOfDisk   = 3                // in a row in uninterruptible sleep
	samplesOfSync   = 3                // in a row in a wait for a standby
	samplesOfPin    = 3                // in a row in one statement's wait for a buffer pin
	longIdle        = 5 * time.Minute  // idle in a transaction
	longStatement   = 10 * time.Second // one statement, without a wait event in each sample
	meanOf          = 5                // samples for the mean of running processes
	mostOfRule      = 8                // largest number of findings of one rule
)

// RulesNeed is the time for which a new source must take samples until every rule can find a state that began long before. Only the
// rule for statements without a wait needs this time. The others need at most three samples.
const RulesNeed = longStatement

// facts are the input of the rules: a moment, and data of the host.
type facts struct {
	m              *moment.Moment
	processors     float64 // 0: not known
	maxConnections int     // 0: not known
	// states are the states of processes as in proc(5), by process id. Processes whose state was not read are absent.
	states map[int]byte
	// kernel are the kernel functions in which processes of state D sleep, if they are known.
	kernel map[int]string
	// memory is the number of bytes that all processes of the server together can use; 0: not known.
	memory uint64
	// unseen is the number of active processes whose state was not read.
	unseen int
	// replay is the replay of a standby; nil: the server is no standby, or this is not known. The rules set its Since.
	replay *Replay
	// older is set for a sweep that is not the newest one: the data of the host was not read for it.
	older bool
	// interval is the usual time between two samples. looks is the usual time between two samples with data of the host, if it is longer.
	interval, looks time.Duration
}

// rules makes the findings of each sample, and keeps since which sample each fact has been true. A fact is a key: of a finding, or
// of a condition that must be true for some samples before it becomes a finding.
type rules struct {
	first   map[string]time.Time // first of the samples in a row in which a fact is true
	count   map[string]int       // number of these samples
	running []int                // number of running processes in each of the last samples
	now     map[string]bool      // facts of the current sample
	last    time.Time            // of the newest sample
	host    time.Time            // of the newest sample with data of the host
	grown   growth               // memory of large processes
}

// holds records that a fact is true in the current sample, whose time is at. It returns the time of the first of the samples
// in a row in which the fact is true, and the number of these samples.
func (r *rules) holds(key string, at time.Time) (time.Time, int) {
	if r.first == nil {
		r.first, r.count = map[string]time.Time{}, map[string]int{}
	}
	if !r.now[key] {
		r.now[key] = true
		r.count[key]++
	}
	if _, ok := r.first[key]; !ok {
		r.first[key] = at
	}
	return r.first[key], r.count[key]
}

// apply returns the findings of a sample, the worst first. It must be called once for each sample.
func (r *rules) apply(f *facts) []Finding {
	samples := f.m.Time.Sub(r.last) <= max(longStatement, 3*f.interval) // else, nothing is known of the time without samples
	looks := f.older || f.m.Time.Sub(r.host) <= max(longStatement, 3*f.interval, 3*f.looks)
	if !samples || !looks {
		r.end(func(key string) bool { // replay does not return to a position
			return (!samples || ofHost(key)) && !strings.HasPrefix(key, replayAt)
		})
		r.running, r.grown = nil, nil
	}
	if !f.older {
		r.host = f.m.Time
	}
	r.last, r.now = f.m.Time, make(map[string]bool)
	b := BlockingOf(f.m)
	sessions := byPID(f.m)
	list := append([]Finding{}, r.replays(f, b)...)
	list = append(list, r.blocking(f, b, sessions)...)
	list = append(list, r.pins(f, b, sessions)...)
	list = append(list, r.connections(f)...)
	list = append(list, r.events(f)...)
	list = append(list, r.processes(f)...)
	list = append(list, r.memory(f)...)
	list = append(list, r.idle(f, b)...)
	list = append(list, r.statements(f)...)
	r.end(func(key string) bool { return !r.now[key] && !(f.older && ofHost(key)) })
	sortFindings(list)
	return list
}

// end removes the facts that are no longer true.
func (r *rules) end(no func(key string) bool) {
	for key := range r.first {
		if no(key) {
			delete(r.first, key)
			delete(r.count, key)
		}
	}
}

// replayAt and a position are the fact that replay is at this position.
const replayAt = "replay-at-"

// ofHost reports whether a fact needs data that is read from the host, not from a recorder.
func ofHost(key string) bool {
	return slices.ContainsFunc([]string{RuleConnections, RuleDisk, RuleProcessors, RuleMemory, replayAt}, func(rule string) bool {
		return strings.HasPrefix(key, rule)
	})
}

// sortFindings sorts the worst first.
func sortFindings(list []Finding) {
	slices.SortStableFunc(list, func(a, b Finding) int {
		if a.Severity != b.Severity {
			if a.Severity == Critical {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(rank(a.Rule), rank(b.Rule)), cmp.Compare(b.Sessions, a.Sessions), a.Since.Compare(b.Since),
			cmp.Compare(a.Key, b.Key))
	})
}

// rank returns the position of a rule among the rules of one severity.
func rank(rule string) int {
	return slices.Index([]string{
		RuleDeadlock, RuleBlocks, RulePin, RuleConnections, RuleSyncRep, RuleWAL, RuleReplay, RuleDisk, RuleMemory, RuleEvent, RuleProcessors,
		RuleIdleInTx, RuleStatement,
	}, rule)
}

// blocking finds sessions that block others and do not wait for a lock: the roots of trees.
func (r *rules) blocking(f *facts, b *Blocking, sessions map[int]*moment.Session) (list []Finding) {
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if n.Depth > 0 || n.Blocks == 0 {
			continue
		}
		below := b.Nodes[i+1:]
		if end := slices.IndexFunc(below, func(x BlockingNode) bool { return x.Depth == 0 }); end >= 0 {
			below = below[:end]
		}
		find := Finding{Rule: RuleBlocks, Severity: Critical, Sessions: n.Blocks, PID: n.PID}
		find.Key = fmt.Sprintf("%s-%d-%d", RuleBlocks, n.PID, n.XID)
		since, _ := r.holds(find.Key, f.m.Time)
		find.Since, find.AtLeast = since, true
		var first *moment.LockWait
		mixed := false
		active, oldest := 0, time.Time{}
		for j := range below {
			if s := sessions[below[j].PID]; s != nil && ClassOf(s) != "" {
				active++
			}
			if below[j].Depth != 1 {
				continue
			}
			for k := range below[j].Waits {
				w := &below[j].Waits[k]
				mixed = mixed || first != nil && (w.Lock != first.Lock || w.Object != first.Object)
				first = w
				if w.Since != nil && (oldest.IsZero() || w.Since.Before(oldest)) {
					oldest = *w.Since
				}
			}
		}
		if !oldest.IsZero() {
			find.Since, find.AtLeast = oldest, false
		}
		find.Share = activeShare(active)
		if mixed {
			first = nil
		}
		if n.Deadlock {
			find.Rule = RuleDeadlock
			find.Text = fmt.Sprintf("%s and %s wait for each other", subject(f, n), units.Count(n.Blocks, "other session"))
		} else {
			what, then := heldReplay(f, below)
			what = cmp.Or(what, units.Count(n.Blocks, "session"))
			find.Text = subject(f, n) + " blocks " + what + onObject(f, first) + then + behind(below)
		}
		if s := sessions[n.PID]; s != nil {
			find.Detail = s.Query
			if s.Query != "" && ClassOf(s) == "" {
				find.Detail = "last statement: " + s.Query
			}
		}
		list = append(list, find)
	}
	return most(list)
}

// behind names the process below a root behind which most of the others wait, and the lock of a relation for which it waits itself.
// An example is an ALTER TABLE between a SELECT and other SELECTs. The text is empty if there is no such process.
func behind(below []BlockingNode) string {
	var middle *BlockingNode
	for i := range below {
		n := &below[i]
		if n.PID != 0 && n.Blocks > 0 && len(n.Waits) > 0 && n.Waits[0].Lock == "relation" && (middle == nil || n.Blocks > middle.Blocks) {
			middle = n
		}
	}
	if middle == nil {
		return ""
	}
	text := fmt.Sprintf("; %d of them behind PID %d", middle.Blocks, middle.PID)
	if middle.Waits[0].Mode != "" {
		text += ", which waits for " + middle.Waits[0].Mode
	}
	return text
}

// pins finds sessions that wait long for a buffer pin, until no other session uses a page. The server does not record which
// session uses the page, so the sentence names candidates.
func (r *rules) pins(f *facts, b *Blocking, sessions map[int]*moment.Session) (list []Finding) {
	for i := range b.Nodes {
		n := &b.Nodes[i]
		s := sessions[n.PID]
		w := slices.IndexFunc(n.Waits, func(w moment.LockWait) bool { return len(w.Candidates) > 0 })
		if s == nil || w < 0 {
			continue
		}
		find := Finding{Rule: RulePin, Severity: Warning, Sessions: 1, PID: n.PID, AtLeast: true}
		find.Key = fmt.Sprintf("%s-%d-%d", RulePin, n.PID, micro(s.QueryStart))
		since, samples := r.holds(find.Key, f.m.Time)
		if samples < samplesOfPin {
			continue
		}
		find.Since, find.Detail = since, s.Query
		holder := fmt.Sprintf("one of %d processes may hold it", len(n.Waits[w].Candidates)+n.Waits[w].MoreCandidates)
		if pids := n.Waits[w].Candidates; len(pids) == 1 {
			if holder = fmt.Sprintf("PID %d may hold it", pids[0]); sessions[pids[0]] != nil {
				holder = sessionName(f.m.Time, sessions[pids[0]]) + " may hold it"
			}
			find.PID = pids[0]
		}
		find.Text = fmt.Sprintf("PID %d waits for a buffer pin, a page in use: %s", n.PID, holder)
		list = append(list, find)
	}
	return most(list)
}

// activeShare returns a preliminary Share for a finding: its number of active sessions, or nil without any. The source replaces
// it by the share, which it computes from the samples of a span.
func activeShare(active int) *float64 {
	if active == 0 {
		return nil
	}
	n := float64(active)
	return &n
}

// most returns the most important findings of a rule, at most mostOfRule.
func most(list []Finding) []Finding {
	sortFindings(list)
	return list[:min(len(list), mostOfRule)]
}

// subject names a node in a sentence: the process id, the application and the state, or the prepared transaction.
func subject(f *facts, n *BlockingNode) string {
	switch {
	case n.PID != 0 && n.Session != nil:
		return sessionName(f.m.Time, &n.Session.Session)
	case n.PID != 0:
		return fmt.Sprintf("PID %d", n.PID)
	case n.GID != "":
		return fmt.Sprintf("The prepared transaction %q", n.GID)
	case n.XID == 0: // a recorder does not always know it
		return "A prepared transaction"
	}
	return fmt.Sprintf("The prepared transaction %d", n.XID)
}

// sessionName names a session for a sentence.
func sessionName(at time.Time, s *moment.Session) string {
	var parts []string
	if s.Application != "" {
		parts = append(parts, s.Application)
	}
	state := s.State
	if state == "" || s.Type != clientBackend {
		parts = append(parts, s.Type)
	}
	if state != "" && state != stateDisabled {
		if s.StateStart != nil && !units.Ahead(at, *s.StateStart) {
			state += " for " + units.Age(at.Sub(*s.StateStart))
		}
		parts = append(parts, state)
	}
	return fmt.Sprintf("PID %d (%s)", s.ServerPID, strings.Join(parts, ", "))
}

// onObject says for which lock sessions wait. w is nil if the sessions wait for different locks: then the text is empty.
func onObject(f *facts, w *moment.LockWait) string {
	switch {
	case w == nil || w.Lock == "":
		return ""
	case w.Lock == "transactionid" && w.Row != "":
		return " until transaction " + w.Object + " ends, which has changed " + w.Row
	case w.Lock == "transactionid":
		return " until transaction " + w.Object + " ends"
	case w.Lock == "virtualxid":
		return " until its transaction ends"
	}
	return " on " + LockName(f.m, w.Lock, w.Object, w.Relation)
}

// LockName describes the object of a lock: "relation stock", or "relation 16384 of database shop" if the name is not known.
func LockName(m *moment.Moment, lock, object, relation string) string {
	text, database := moment.LockWords(lock, object, relation)
	if database == "" || database == "0" {
		return text
	}
	for i := range m.Sessions {
		if s := &m.Sessions[i]; s.Database != "" && strconv.FormatUint(uint64(s.DatabaseOID), 10) == database {
			return text + " of database " + s.Database
		}
	}
	return text + " of database " + database
}

// connections finds that few or no connections are free.
func (r *rules) connections(f *facts) []Finding {
	used := clients(f.m)
	if f.maxConnections == 0 || float64(used) < usedConnections*float64(f.maxConnections) {
		return nil
	}
	find := Finding{Key: RuleConnections, Rule: RuleConnections, Severity: Warning, Sessions: used, AtLeast: true}
	if used >= f.maxConnections {
		find.Severity = Critical
	}
	find.Since, _ = r.holds(find.Key, f.m.Time)
	idle, inTx := 0, 0
	for i := range f.m.Sessions {
		switch s := &f.m.Sessions[i]; {
		case s.Type != clientBackend:
		case inTransaction(s):
			inTx++
		case s.State == stateIdle:
			idle++
		}
	}
	find.Text = fmt.Sprintf("%d of %d connections are in use (max_connections): %d are idle, %d idle in transaction",
		used, f.maxConnections, idle, inTx)
	return []Finding{find}
}

// clients counts the client backends.
func clients(m *moment.Moment) (n int) {
	for i := range m.Sessions {
		if m.Sessions[i].Type == clientBackend {
			n++
		}
	}
	return n
}

// toDisk reports whether a session at a wait event waits until WAL is on disk. The names differ between versions of PostgreSQL.
func toDisk(event string) bool {
	return slices.Contains([]string{"lwlock:walwrite", "io:walsync", "io:walwrite", "lwlock:walwritelock"}, strings.ToLower(event))
}

// events finds wait events at which many sessions wait.
func (r *rules) events(f *facts) (list []Finding) {
	byEvent, active := map[string]int{}, 0
	disk, syncAge := 0, 0
	var sync []*moment.Session
	var diskEvents []string
	for i := range f.m.Sessions {
		s := &f.m.Sessions[i]
		class := ClassOf(s)
		if class == "" {
			continue
		}
		active++
		event := eventOf(s)
		switch {
		case strings.EqualFold(event, "IPC:SyncRep"):
			sync = append(sync, s)
			_, n := r.holds(fmt.Sprintf("sync-%d-%d", s.ServerPID, micro(s.QueryStart)), f.m.Time)
			syncAge = max(syncAge, n)
		case toDisk(event):
			disk++
			if !slices.Contains(diskEvents, event) {
				diskEvents = append(diskEvents, event)
			}
		case class != CPU && class != Lock && class != Client:
			byEvent[event]++
		}
	}
	many := func(n int) bool { return n >= fewestWaiters && float64(n) >= waitersShare*float64(active) }
	if n := len(sync); n > 0 && (syncAge >= samplesOfSync || many(n)) {
		list = append(list, r.event(f, Finding{
			Key: RuleSyncRep, Rule: RuleSyncRep, Severity: Critical, Sessions: n,
			Text:   waitsOf(n) + syncRepText + standbys(f.m, sync),
			Filter: Filter{{ByEvent, "IPC:SyncRep", "IPC:SyncRep"}},
		}))
	}
	if many(disk) {
		slices.Sort(diskEvents)
		find := Finding{
			Key: RuleWAL, Rule: RuleWAL, Severity: Warning, Sessions: disk,
			Text: fmt.Sprintf("%d of %s wait until WAL is on disk (%s)", disk, units.Count(active, "active session"), strings.Join(diskEvents, ", ")),
		}
		if len(diskEvents) == 1 {
			find.Filter = Filter{{ByEvent, diskEvents[0], diskEvents[0]}}
		}
		list = append(list, r.event(f, find))
	}
	for event, n := range byEvent {
		if many(n) {
			list = append(list, r.event(f, Finding{
				Key: RuleEvent + "-" + event, Rule: RuleEvent, Severity: Warning, Sessions: n,
				Text:   fmt.Sprintf("%d of %s wait for %s", n, units.Count(active, "active session"), event),
				Filter: Filter{{ByEvent, event, event}},
			}))
		}
	}
	return list
}

const syncRepText = " for a synchronous standby to confirm a commit"

// standbys says which synchronous standbys have not confirmed the commits of the waiting sessions.
func standbys(m *moment.Moment, waiting []*moment.Session) string {
	behind, reason := map[int]uint64{}, ""
	for _, s := range waiting {
		reason = cmp.Or(strings.TrimPrefix(s.BlockersUnknown, "unknown: "), reason)
		for i := range s.Blockers {
			b := &s.Blockers[i]
			behind[b.PID] = max(behind[b.PID], b.Behind)
		}
	}
	switch {
	case len(behind) == 0 && reason != "":
		return ": " + reason
	case len(behind) == 0:
		return " (IPC:SyncRep)"
	}
	pid := slices.MaxFunc(slices.Sorted(maps.Keys(behind)), func(a, b int) int { return cmp.Compare(behind[a], behind[b]) })
	text := fmt.Sprintf(": the standby of WAL sender %d", pid)
	if s := byPID(m)[pid]; s != nil && s.Application != "" {
		text = fmt.Sprintf(": standby %s (WAL sender %d)", s.Application, pid)
	}
	text += " is connected"
	if n := behind[pid]; n > 0 {
		text += " and has not confirmed the last " + units.Size(n) + " of WAL"
	}
	if n := len(behind) - 1; n > 0 {
		text += units.Plural(n, "; %d other {standby has|standbys have} not confirmed all of it either")
	}
	return text
}

func waitsOf(n int) string {
	return units.Plural(n, "%d {session waits|sessions wait}")
}

func (r *rules) event(f *facts, find Finding) Finding {
	find.Since, _ = r.holds(find.Key, f.m.Time)
	find.AtLeast, find.Share = true, activeShare(find.Sessions)
	return find
}

// processes finds that more processes run than there are processors, and finds processes in uninterruptible sleep.
func (r *rules) processes(f *facts) (list []Finding) {
	if f.older {
		return nil
	}
	running := 0
	for i := range f.m.Sessions {
		s := &f.m.Sessions[i]
		switch f.states[s.ServerPID] {
		case 'R':
			running++
		case 'D':
			key := fmt.Sprintf("%s-%d-%d", RuleDisk, s.ServerPID, micro(s.Started))
			since, n := r.holds(key, f.m.Time)
			if n < samplesOfDisk {
				continue
			}
			find := Finding{
				Key: key, Rule: RuleDisk, Severity: Warning, Sessions: 1, PID: s.ServerPID, Since: since, AtLeast: true,
				Text: fmt.Sprintf("%s was in uninterruptible sleep (state D) in each of the last %d samples", sessionName(f.m.Time, s), n),
			}
			find.Filter = onlySession(s)
			if in := f.kernel[s.ServerPID]; in != "" {
				find.Text += ", now in the kernel function " + in
			}
			if ClassOf(s) != "" {
				find.Share = activeShare(1)
			}
			list = append(list, find)
		}
	}
	list = most(list)
	r.running = append(r.running, running)
	r.running = r.running[max(0, len(r.running)-meanOf):]
	mean := 0.0
	for _, n := range r.running {
		mean += float64(n) / float64(len(r.running))
	}
	if f.processors > 0 && float64(running) > f.processors && mean > f.processors {
		least := ""
		if f.unseen > 0 {
			least = "at least "
		}
		find := Finding{
			Key: RuleProcessors, Rule: RuleProcessors, Severity: Warning, Sessions: running, AtLeast: true, Share: activeShare(running),
			Text: fmt.Sprintf("%s%s for a processor, and it may use %s",
				least, units.Plural(running, "%d {process of the server runs or waits|processes of the server run or wait}"), processorsText(f.processors)),
			Filter: Filter{{ByClass, CPU, CPU}},
		}
		find.Since, _ = r.holds(find.Key, f.m.Time)
		list = append(list, find)
	}
	return list
}

func processorsText(n float64) string {
	if n == 1 {
		return "1 processor"
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + " processors"
}

// idle finds sessions that are idle in a transaction for long. Sessions that block others are left out, as blocking finds them.
func (r *rules) idle(f *facts, b *Blocking) (list []Finding) {
	blocks := map[int]bool{}
	for i := range b.Nodes {
		if n := &b.Nodes[i]; n.Depth == 0 && n.Blocks > 0 {
			blocks[n.PID] = true
		}
	}
	for i := range f.m.Sessions {
		s := &f.m.Sessions[i]
		if !inTransaction(s) || s.StateStart == nil || f.m.Time.Sub(*s.StateStart) < longIdle || blocks[s.ServerPID] {
			continue
		}
		find := Finding{
			Key:  fmt.Sprintf("%s-%d-%d", RuleIdleInTx, s.ServerPID, micro(s.StateStart)),
			Rule: RuleIdleInTx, Severity: Warning, Sessions: 1, PID: s.ServerPID, Since: *s.StateStart,
			Text: sessionName(f.m.Time, s) + " keeps a transaction open",
		}
		if s.XactStart != nil && !units.Ahead(f.m.Time, *s.XactStart) {
			find.Text += ", begun " + units.Age(f.m.Time.Sub(*s.XactStart)) + " ago"
		}
		if s.Query != "" {
			find.Detail = "last statement: " + s.Query
		}
		list = append(list, find)
	}
	return most(list)
}

// onlySession returns a filter that only this session passes.
func onlySession(s *moment.Session) Filter {
	return Filter{{BySession, fmt.Sprintf("%d-%d", s.ServerPID, micro(s.Started)), strconv.Itoa(s.ServerPID)}}
}

// statements finds statements that had no wait event in any sample for some time.
func (r *rules) statements(f *facts) (list []Finding) {
	for i := range f.m.Sessions {
		s := &f.m.Sessions[i]
		if ClassOf(s) != CPU || s.QueryStart == nil || s.Type != clientBackend {
			continue
		}
		key := fmt.Sprintf("%s-%d-%d", RuleStatement, s.ServerPID, micro(s.QueryStart))
		since, n := r.holds(key, f.m.Time)
		took := f.m.Time.Sub(since)
		if took < longStatement || n < 2 {
			continue
		}
		who := fmt.Sprintf("PID %d", s.ServerPID)
		if s.Application != "" {
			who += " (" + s.Application + ")"
		}
		length := ""
		if !units.Ahead(f.m.Time, *s.QueryStart) {
			length = " for " + units.Age(f.m.Time.Sub(*s.QueryStart)) + ","
		}
		list = append(list, Finding{
			Key: key, Rule: RuleStatement, Severity: Warning, Sessions: 1, PID: s.ServerPID, Since: since, AtLeast: true,
			Share: activeShare(1), Filter: onlySession(s),
			Text:   fmt.Sprintf("%s has run one statement%s without a wait in the last %s (%d samples)", who, length, units.Age(took), n),
			Detail: strings.TrimPrefix(s.Phrase+"; "+s.Query, "; "),
		})
	}
	return most(list)
}
