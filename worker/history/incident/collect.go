package incident

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/pg/state"
)

// Minutes is the length of the History of an incident.
const Minutes = 5 * time.Minute

// Limits of the time to collect an incident.
const (
	collectLimit = 20 * time.Second
	systemLimit  = 2 * time.Second        // for IDENTIFY_SYSTEM
	stackLimit   = 300 * time.Millisecond // for one stack
	stacksLimit  = 5 * time.Second        // for all stacks
)

// Source has the sources from which the parts of an incident are collected.
type Source struct {
	// Server is the running server.
	Server cluster.Cluster
	// StateDir is the directory of the history; empty: there is no history.
	StateDir string
	// Capturer takes stacks, and reads plans and memory contexts; nil: the incident has none of these.
	Capturer *capture.Capturer
	// Proof returns the fields of plans that were compared with EXPLAIN on a server of the same build, nil if no field was. It must
	// not begin a comparison. If Proof itself is nil, plans have all fields, and are marked as unproven.
	Proof func(build string, major int) *plan.Proof
	// Identify runs IDENTIFY_SYSTEM over a replication connection; nil: there is none.
	Identify func(context.Context) (cluster.System, error)
	// Program is the version of this program.
	Program string
}

// Collect collects an incident for a finding. l is the look in which the finding was made. Collect takes at most about 20 seconds,
// and stops no process. The parts that could not be read are in Incident.Missing.
func Collect(ctx context.Context, src Source, f rules.Finding, l *rules.Look) *Incident {
	ctx, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	i := &Incident{
		Schema: Schema, ID: newID(l.Time, f.Rule), Time: l.Time.UTC().Round(0), Program: src.Program, Reason: f,
		Server: Server{Version: strconv.Itoa(src.Server.Version), DataDir: src.Server.DataDir, Postmaster: src.Server.PostmasterPID,
			Clients: l.Clients, Slots: l.Slots},
	}
	i.Reason.Since = f.Since.UTC().Round(0)
	control, err := cluster.ReadControl(src.Server.DataDir)
	if err != nil {
		i.missing("system identifier", err)
	} else {
		i.Server.SystemID, i.Server.Timeline = control.ID(), control.Timeline
	}
	i.Sessions, i.SessionsLeftOut = sessions(l.Rows, l.Procs, f.Processes)
	for j := range i.Sessions {
		i.Sessions[j].HoldersUnknown = bounded(l.Unknown[i.Sessions[j].PID])
	}
	i.Forest = forest(i.Sessions)
	i.takeStacks(ctx, &src)
	if r, m, err := all(src.Server); err != nil {
		i.missing("memory, plans and positions of WAL", err)
	} else {
		i.addWAL(&src, r, m, control)
		i.addPlans(ctx, &src, m)
		i.addMemory(ctx, &src, m)
	}
	i.addSettings(src.Server)
	i.Host = hostOf(ctx, []string{src.Server.DataDir, filepath.Join(src.Server.DataDir, "pg_wal"), src.StateDir})
	i.addHistory(ctx, src.StateDir)
	i.addSystem(ctx, &src)
	return i
}

// ByPerson returns the finding for an incident that a person requests. text is the person's note; empty: no note.
func ByPerson(at time.Time, text string) rules.Finding {
	f := rules.Finding{Rule: Manual, Cause: Manual, Since: at, Summary: strings.TrimSuffix(note, ": ")}
	if text != "" {
		f.Summary = note + bounded(text)
	}
	return f
}

// newID returns a new name for an incident. Names sort by time.
func newID(at time.Time, rule string) string {
	var b [2]byte
	_, _ = rand.Read(b[:])
	return at.UTC().Format("20060102T150405Z") + "-" + rule + "-" + hex.EncodeToString(b[:])
}

func (i *Incident) missing(what string, err error) {
	if len(i.Missing) < maxMissing {
		i.Missing = append(i.Missing, what+": "+err.Error())
	}
}

// takeStacks takes the stacks of the processes in the reason and of the roots of the Forest first, then of other sessions that run
// or wait.
func (i *Incident) takeStacks(ctx context.Context, src *Source) {
	i.Stacks = []ProcessStack{}
	if src.Capturer == nil {
		return
	}
	pids := slices.Clone(i.Reason.Processes)
	for _, n := range i.Forest {
		pids = append(pids, n.PID)
	}
	for j := range i.Sessions {
		if s := &i.Sessions[j]; s.WaitType != "Client" && s.WaitType != "Activity" {
			pids = append(pids, s.PID)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stacksLimit)
	defer cancel()
	taken := map[int32]bool{}
	for _, pid := range pids {
		if pid <= 0 || taken[pid] {
			continue
		}
		if len(i.Stacks) >= maxStacks || ctx.Err() != nil {
			i.missing("stacks", fmt.Errorf("only %d were taken", len(i.Stacks)))
			return
		}
		taken[pid] = true
		p := ProcessStack{PID: pid, Time: time.Now().UTC().Round(time.Microsecond)}
		stack, err := i.stack(ctx, src, pid)
		if err != nil {
			p.Error = err.Error()
		} else {
			p.Stack = stack
			for j := range i.Sessions {
				if s := &i.Sessions[j]; s.PID == pid {
					s.Phrase, s.PhraseKey = stack.Phrase, stack.PhraseKey
				}
			}
		}
		i.Stacks = append(i.Stacks, p)
	}
}

// stack takes one stack, in up to three attempts: the first stack of a server may fail because a file is still being read.
func (i *Incident) stack(ctx context.Context, src *Source, pid int32) (s *recorder.Stack, err error) {
	const tries = 3
	for range tries {
		if s, err = recorder.TakeStack(ctx, src.Capturer, src.Server, int(pid), stackLimit); err == nil || errors.Is(err, cluster.ErrNotMember) {
			return s, err
		}
	}
	return nil, err
}

// settings are settings that the server keeps in variables of type int. Each has the name of the setting, the name of the variable
// and the unit.
//
//nolint:gochecknoglobals // read only
var settings = [][3]string{
	{"max_connections", "MaxConnections", ""}, {"shared_buffers", "NBuffers", "8kB"}, {"work_mem", "work_mem", "kB"},
	{"maintenance_work_mem", "maintenance_work_mem", "kB"}, {"max_worker_processes", "max_worker_processes", ""},
	{"max_parallel_workers", "max_parallel_workers", ""}, {"max_wal_senders", "max_wal_senders", ""},
	{"deadlock_timeout", "DeadlockTimeout", "ms"}, {"lock_timeout", "LockTimeout", "ms"},
	{"statement_timeout", "StatementTimeout", "ms"},
	{"idle_in_transaction_session_timeout", "IdleInTransactionSessionTimeout", "ms"}, {"transaction_timeout", "TransactionTimeout", "ms"},
	{"max_wal_size", "max_wal_size_mb", "MB"}, {"checkpoint_timeout", "CheckPointTimeout", "s"},
	{"autovacuum_max_workers", "autovacuum_max_workers", ""}, {"max_locks_per_transaction", "max_locks_per_xact", ""},
	{"max_prepared_transactions", "max_prepared_xacts", ""}, {"wal_level", "wal_level", ""},
	{"superuser_reserved_connections", "SuperuserReservedConnections", ""}, {"reserved_connections", "ReservedConnections", ""},
}

func (i *Incident) addSettings(c cluster.Cluster) {
	i.Settings = []Setting{}
	r, err := state.Open(c)
	if err != nil {
		i.missing("settings", err)
		return
	}
	var names []string
	for _, s := range settings {
		names = append(names, s[1])
	}
	values := r.Integers(names...)
	for _, s := range settings {
		if v, ok := values[s[1]]; ok {
			i.Settings = append(i.Settings, Setting{Name: s[0], Value: v, Unit: s[2]})
		}
	}
}

// addHistory adds the History: the recorded sweeps of the last Minutes before the incident.
func (i *Incident) addHistory(ctx context.Context, dir string) {
	h := &i.History
	h.Until, h.Seconds, h.Spans = i.Time.Add(time.Second), []Second{}, []Span{}
	h.Since = h.Until.Add(-Minutes)
	if dir == "" {
		return
	}
	r, err := store.OpenReader(dir, i.Server.SystemID)
	if err != nil {
		i.missing("history", err)
		return
	}
	b := spans{open: map[int64]*Span{}, prints: map[*Span]string{}}
	if err := r.Rows(ctx, h.Since, h.Until, b.add); err != nil {
		i.missing("history", err)
	}
	for _, err := range r.Damage {
		i.missing("history", err)
	}
	if h.Seconds = b.seconds(); len(h.Seconds) == 0 {
		i.missing("history", errors.New("no session was recorded in the five minutes before"))
	}
	list := b.all
	if len(list) > maxSpans {
		slices.SortStableFunc(list, func(x, y *Span) int {
			return cmp.Or(cmp.Compare(rank(i.Reason.Processes, x.Session.PID), rank(i.Reason.Processes, y.Session.PID)), y.To.Compare(x.To))
		})
		list, h.LeftOut = list[:maxSpans], len(list)-maxSpans
	}
	h.LeftOut += b.leftOut
	slices.SortStableFunc(list, func(x, y *Span) int { return x.From.Compare(y.From) })
	for _, s := range list {
		h.Spans = append(h.Spans, *s)
	}
}

// spans joins equal rows of consecutive sweeps to one Span, and counts the sessions of each second.
type spans struct {
	open    map[int64]*Span  // the newest span of each process, by process id
	prints  map[*Span]string // the row of each span as text, to compare it with the next row
	all     []*Span
	leftOut int
	counts  []Second
	sweep   map[string]int // number of sessions in the sweep in progress, by class of wait event
	at      time.Time      // of the sweep in progress
}

// pauseOfSpan is the longest time between two consecutive sweeps of a span.
const pauseOfSpan = 15 * time.Second

func (b *spans) add(r *store.Row) error {
	const most = 20 * maxSpans
	at := time.UnixMicro(r.Time).UTC()
	if !at.Equal(b.at) {
		b.count()
		b.at, b.sweep = at, map[string]int{}
	}
	if !r.Ended {
		b.sweep[cmp.Or(r.WaitType, "running")]++
	}
	content := fmt.Sprint(r.Start, r.Ended, r.State, r.WaitType, r.WaitEvent, r.WaitStart, r.XactStart, r.QueryStart, r.Does(), r.BlockedBy)
	if s := b.open[int64(r.PID)]; s != nil && b.prints[s] == content && at.Sub(s.To) <= pauseOfSpan {
		s.To = at
		s.Sweeps++
		return nil
	}
	if len(b.all) >= most {
		b.leftOut++
		return nil
	}
	s := &Span{From: at, To: at, Sweeps: 1, Session: sessionOf(r)}
	b.open[int64(r.PID)], b.prints[s] = s, content
	b.all = append(b.all, s)
	return nil
}

// count adds the sweep in progress to the counts of its second. If a second has several sweeps, only the sweep with most sessions
// is used.
func (b *spans) count() {
	if b.sweep == nil {
		return
	}
	second := b.at.Truncate(time.Second)
	sum := func(m map[string]int) (n int) {
		for _, c := range m {
			n += c
		}
		return n
	}
	if n := len(b.counts); n > 0 && b.counts[n-1].Time.Equal(second) {
		if sum(b.sweep) > sum(b.counts[n-1].Counts) {
			b.counts[n-1].Counts = b.sweep
		}
		return
	}
	b.counts = append(b.counts, Second{Time: second, Counts: b.sweep})
}

func (b *spans) seconds() []Second {
	b.count()
	b.sweep = nil
	if b.counts == nil {
		return []Second{}
	}
	return b.counts
}

// validID reports whether a text can be the name of an incident. Such a name has no slash and no dot, so that it cannot lead to
// another folder.
func validID(id string) bool {
	const longest = 80
	return id != "" && len(id) <= longest && id[0] != '-' &&
		strings.Trim(id, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-") == ""
}
