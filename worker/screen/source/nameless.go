package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/units"
)

// ErrNeedsOperator means that a reader without the right to see names, texts, stacks, plans and memory has requested
// them.
var ErrNeedsOperator = errors.New("texts, names, stacks, plans and memory need an operator token")

// Nameless is a source for readers without the right to see texts of statements and names of users, databases,
// applications, clients, relations and functions. Each answer is a new value, into which this file copies the members that
// this reader may see. So a member that is added to an answer later is hidden at first. Nameless is not a Prober.
type Nameless struct{ of Source }

// NewNameless returns a source without texts and names.
func NewNameless(of Source) Nameless { return Nameless{of} }

// numberKey matches keys (values in a Condition) that contain no name.
var numberKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(text-)?[0-9a-f-]{0,40}$`) })

// check returns an error for conditions with which a reader could guess names.
func (Nameless) check(f Filter) error {
	for _, c := range f {
		switch c.By {
		case ByEvent, ByClass:
		case ByType:
			if c.Key != namelessType(c.Key) {
				return fmt.Errorf("the filter %s: %w", c.By, ErrNeedsOperator)
			}
		case BySession, ByQuery:
			if !numberKey().MatchString(c.Key) {
				return fmt.Errorf("the filter %s: %w", c.By, ErrNeedsOperator)
			}
		case ByUser, ByDatabase, ByApplication, ByPhrase:
			return fmt.Errorf("the filter %s: %w", c.By, ErrNeedsOperator)
		default:
			return errors.New("the filter has an unknown property")
		}
	}
	return nil
}

// Info implements Source.Info.
func (n Nameless) Info(ctx context.Context) (*Info, error) {
	i, err := n.of.Info(ctx)
	if err != nil {
		return nil, err
	}
	return &Info{
		Version: i.Version, Port: i.Port, Started: i.Started, Ended: i.Ended, Standby: i.Standby, Processors: i.Processors,
		MaxConnections: i.MaxConnections, IntervalSeconds: i.IntervalSeconds, First: i.First, Last: i.Last,
		Past: i.Past, CostPercent: i.CostPercent, Replay: i.Replay, Error: hidden(i.Error), Sessions: i.Sessions, Missing: hiddenAll(i.Missing),
	}, nil
}

// hidden replaces an error, because its text can have names and paths.
func hidden(text string) string {
	if text == "" {
		return ""
	}
	return "the server could not be read; the reason needs an operator token"
}

// hiddenAll replaces a list of reasons by one sentence with their number.
func hiddenAll(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return []string{units.Count(len(list), "thing") + " could not be read; the reasons need an operator token"}
}

// Watch implements Source.Watch.
func (n Nameless) Watch() (<-chan struct{}, func()) { return n.of.Watch() }

// Load implements Source.Load.
func (n Nameless) Load(ctx context.Context, q Query, columns int) (*Load, error) {
	if err := n.check(q.Filter); err != nil {
		return nil, err
	}
	l, err := n.of.Load(ctx, q, columns)
	if err != nil {
		return nil, err
	}
	x := *l // the other members have only times, numbers and wait classes
	x.Gaps = nil
	for _, g := range l.Gaps {
		if strings.HasPrefix(g.Reason, reasonUnreadable) || strings.HasPrefix(g.Reason, reasonUnread) {
			g.Reason = hidden(g.Reason)
		}
		x.Gaps = append(x.Gaps, g)
	}
	return &x, nil
}

// `Who` implements the method of Source.
func (n Nameless) Who(ctx context.Context, q Query, by By, limit int) (*Who, error) {
	if err := n.check(append(slices.Clone(q.Filter), Condition{By: by})); err != nil {
		return nil, err
	}
	w, err := n.of.Who(ctx, q, by, limit)
	if err != nil {
		return nil, err
	}
	x := &Who{Span: w.Span, By: w.By, Rows: []WhoRow{}, Active: w.Active, Seconds: w.Seconds}
	if o := w.Others; o != nil {
		x.Others = &WhoRow{Count: o.Count, Active: o.Active, Share: o.Share, ByClass: o.ByClass}
	}
	for _, r := range w.Rows {
		if by == ByType && r.Key != namelessType(r.Key) {
			x.addOther(&r)
			continue
		}
		name := r.Key
		if by == BySession && pidOf(r.Key) == "0" {
			name = r.Name
		} else if by == BySession {
			name = "PID " + pidOf(r.Key)
		}
		x.Rows = append(x.Rows, WhoRow{Key: r.Key, Name: name, Count: r.Count, Active: r.Active, Share: r.Share, ByClass: r.ByClass})
	}
	return x, nil
}

// addOther adds a row to the row named Others.
func (w *Who) addOther(r *WhoRow) {
	o := &WhoRow{ByClass: map[string]float64{}}
	if w.Others != nil {
		*o = *w.Others
		o.ByClass = maps.Clone(o.ByClass)
	}
	o.Count, o.Active, o.Share = o.Count+1, o.Active+r.Active, o.Share+r.Share
	for class, n := range r.ByClass {
		o.ByClass[class] += n
	}
	w.Others = o
}

// namelessType returns the type of a process. An extension can put names of databases and users into the types of its workers, so
// their type is state.BackgroundWorker.
func namelessType(kind string) string {
	const newest = 19 // has all types
	if kind == "" || kind == state.ParallelWorker || slices.Contains(state.BackendTypes(newest), kind) || coreWorker().MatchString(kind) {
		return kind
	}
	return state.BackgroundWorker
}

// coreWorker matches the types of PostgreSQL's own background workers.
var coreWorker = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^logical replication (launcher|((apply|parallel|tablesync|sequencesync) )?worker)$`)
})

// pidOf returns the process id in the key of a session, which is PID-START.
func pidOf(key string) string {
	for i, r := range key {
		if r == '-' {
			return key[:i]
		}
	}
	return key
}

// Findings implements Source.Findings.
func (n Nameless) Findings(ctx context.Context, s Span) (*Findings, error) {
	f, err := n.of.Findings(ctx, s)
	if err != nil {
		return nil, err
	}
	x := &Findings{Time: f.Time, Findings: []Finding{}, Unknown: hiddenAll(f.Unknown)}
	for i := range f.Findings {
		y := &f.Findings[i]
		z := Finding{
			Key: y.Key, Rule: y.Rule, Severity: y.Severity, Since: y.Since, AtLeast: y.AtLeast, Sessions: y.Sessions,
			Share: y.Share, PID: y.PID, Text: namelessText(y),
		}
		if n.check(y.Filter) == nil {
			z.Filter = y.Filter
		}
		x.Findings = append(x.Findings, z)
	}
	return x, nil
}

// namelessText returns the sentence of a finding without names.
func namelessText(f *Finding) string {
	subject := "A prepared transaction"
	if f.PID != 0 {
		subject = fmt.Sprintf("PID %d", f.PID)
	}
	sessions := units.Count(f.Sessions, "session")
	switch f.Rule {
	case RuleDeadlock:
		return subject + " and other sessions wait for each other"
	case RuleBlocks:
		return subject + " blocks other sessions (" + sessions + " in all)"
	case RuleConnections, RuleWAL, RuleEvent, RuleProcessors, RuleReplay:
		return f.Text // has only numbers and wait events
	case RuleSyncRep: // the whole text names standbys
		return waitsOf(f.Sessions) + syncRepText
	case RuleDisk:
		return subject + " is in uninterruptible sleep (state D)"
	case RuleMemory:
		return subject + " holds much private memory"
	case RuleIdleInTx:
		return subject + " keeps a transaction open"
	case RuleStatement:
		return subject + " runs one statement without a wait"
	}
	return "A finding about " + sessions
}

// Sessions implements Source.Sessions.
func (n Nameless) Sessions(ctx context.Context, f Filter, limit int) (*Sessions, error) {
	if err := n.check(f); err != nil {
		return nil, err
	}
	s, err := n.of.Sessions(ctx, f, limit)
	if err != nil {
		return nil, err
	}
	x := &Sessions{Time: s.Time, Sessions: []SessionLine{}, More: s.More, Missing: hiddenAll(s.Missing)}
	for i := range s.Sessions {
		x.Sessions = append(x.Sessions, *namelessLine(&s.Sessions[i]))
	}
	return x, nil
}

// namelessLine returns a session without names.
func namelessLine(s *SessionLine) *SessionLine {
	if s == nil {
		return nil
	}
	x := &SessionLine{Class: s.Class, Own: s.Own, Session: moment.Session{
		PID: s.PID, ServerPID: s.ServerPID, Started: s.Started, Type: namelessType(s.Type), State: s.State, XactStart: s.XactStart,
		QueryStart: s.QueryStart, StateStart: s.StateStart, Wait: s.Wait, QueryID: s.QueryID, Leader: s.Leader, PrivateBytes: s.PrivateBytes,
	}}
	for _, b := range s.Blockers {
		x.Blockers = append(x.Blockers, moment.Blocker{
			PID: b.PID, XID: b.XID, Lock: b.Lock, Mode: b.Mode, Object: b.Object, Since: b.Since, Held: b.Held, Queued: b.Queued,
		})
	}
	if s.BlockersUnknown != "" {
		x.BlockersUnknown = hidden(s.BlockersUnknown)
	}
	return x
}

// Blocking implements Source.Blocking.
func (n Nameless) Blocking(ctx context.Context) (*Blocking, error) {
	b, err := n.of.Blocking(ctx)
	if err != nil {
		return nil, err
	}
	x := &Blocking{Time: b.Time, Waiting: b.Waiting, Trees: b.Trees, Nodes: []BlockingNode{}, Missing: hiddenAll(b.Missing)}
	for i := range b.Nodes {
		y := &b.Nodes[i]
		z := BlockingNode{
			Depth: y.Depth, PID: y.PID, XID: y.XID, Session: namelessLine(y.Session), Blocks: y.Blocks, Directly: y.Directly,
			Deadlock: y.Deadlock, MoreBlockers: y.MoreBlockers,
		}
		for _, w := range y.Waits {
			z.Waits = append(z.Waits, moment.LockWait{
				PID: w.PID, Lock: w.Lock, Mode: w.Mode, Object: w.Object, Since: w.Since, Unknown: hidden(w.Unknown),
			})
		}
		x.Nodes = append(x.Nodes, z)
	}
	return x, nil
}

// Session implements Source.Session.
func (n Nameless) Session(ctx context.Context, pid int, q Span) (*Session, error) {
	s, err := n.of.Session(ctx, pid, q)
	if err != nil {
		return nil, err
	}
	x := &Session{Time: s.Time, Now: namelessLine(s.Now), Waits: []WaitSpan{}, Blocked: s.Blocked, Used: s.Used}
	for _, w := range s.Waits {
		x.Waits = append(x.Waits, WaitSpan{Span: w.Span, Class: w.Class, Event: w.Event})
	}
	return x, nil
}
