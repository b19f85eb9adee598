package store

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// SpanSweep has the sessions that the recorder saw at one time.
type SpanSweep struct {
	Time   time.Time
	Period time.Duration // for which each row counts; see Sweep.Period
	Delay  time.Duration
	Lost   int // earlier sweeps that could not be written
	Note   string
	Rows   []Row
}

// Gap is a time in which nothing was recorded.
type Gap struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Seconds returns the length.
func (g Gap) Seconds() float64 { return g.To.Sub(g.From).Seconds() }

// Summary says how much of a span was recorded.
type Summary struct {
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
	Sweeps   int       `json:"sweeps"`
	Rows     int       `json:"rows"`
	Seconds  float64   `json:"recorded_seconds"` // sum of the sweeps' periods
	Lost     int       `json:"lost_sweeps"`
	Late     int       `json:"late_sweeps"` // sweeps that were late by more than their period
	Gaps     []Gap     `json:"gaps"`        // at most 1000
	GapsMore int       `json:"more_gaps,omitempty"`
	Missing  float64   `json:"missing_seconds,omitempty"` // sum of all gaps
	Damage   []string  `json:"damage,omitempty"`
}

const maxGaps = 1000

// tolerance is the shortest unrecorded time before the period of a sweep that counts as a Gap.
const tolerance = 900 * time.Millisecond

// gap returns the time from a sweep (at the time before) to the begin of the period of the next sweep (at the time at), and true
// if this time counts as a gap.
func gap(before, at time.Time, period time.Duration) (Gap, bool) {
	g := Gap{before, at.Add(-period)}
	return g, g.To.Sub(g.From) >= max(tolerance, period*9/10) // a sweep that is a little late makes no gap
}

// ReadSpan calls the callback each for every sweep of a span, ordered by time. The callback's second argument is the gap before
// the sweep; nil: there is none. If the callback returns an error, ReadSpan returns this error with the summary of the sweeps so
// far.
func ReadSpan(ctx context.Context, r *Reader, since, until time.Time, each func(*SpanSweep, *Gap) error) (Summary, error) {
	s := Summary{Since: since, Until: until, Gaps: []Gap{}}
	var infos []SweepInfo
	err := r.Sweeps(ctx, since, until, func(i SweepInfo) error {
		infos = append(infos, i)
		return nil
	})
	if err != nil {
		return s, err
	}
	last := since
	var current SpanSweep
	pass := func(i *SweepInfo, rows []Row) error {
		current = SpanSweep{
			Time: time.UnixMicro(i.Time), Period: seconds(i.Period), Delay: seconds(i.Delay), Lost: int(i.Lost), Note: i.Note, Rows: rows,
		}
		s.count(&current)
		var before *Gap
		if g, ok := gap(last, current.Time, current.Period); ok {
			before = &g
			s.gap(g)
		}
		last = current.Time
		return each(&current, before)
	}
	sort.SliceStable(infos, func(i, j int) bool {
		a, b := infos[i], infos[j]
		return cmp.Compare(a.Time, b.Time) < 0
	}) // the clock may go back
	next, pending := 0, []Row(nil)
	orphans := func() error { // passes rows of a sweep whose SweepInfo cannot be read
		rows := pending
		pending = nil
		return pass(&SweepInfo{
			Time: rows[0].Time, Period: cmp.Or(current.Period, time.Second).Seconds(), Note: "the record of this sweep cannot be read",
		}, rows)
	}
	flush := func(until int64) error { // passes the sweeps before a time
		for ; next < len(infos) && infos[next].Time < until; next++ {
			if len(pending) > 0 && pending[0].Time < infos[next].Time {
				if err := orphans(); err != nil {
					return err
				}
			}
			var rows []Row
			if len(pending) > 0 && pending[0].Time == infos[next].Time {
				rows, pending = pending, nil
			}
			if err := pass(&infos[next], rows); err != nil {
				return err
			}
		}
		if len(pending) > 0 {
			return orphans()
		}
		return nil
	}
	err = r.Rows(ctx, since, until, func(row *Row) error {
		if len(pending) > 0 && pending[0].Time != row.Time {
			if err := flush(row.Time); err != nil {
				return err
			}
		}
		pending = append(pending, *row)
		return nil
	})
	if err == nil {
		err = flush(until.UnixMicro())
	}
	if g, ok := gap(last, until, max(current.Period, time.Second)); ok && err == nil {
		s.gap(g)
		s.Gaps[len(s.Gaps)-1] = g // also if there are too many
	}
	sort.Slice(r.Damage, func(i, j int) bool {
		a, b := r.Damage[i], r.Damage[j]
		return strings.Compare(a.Error(), b.Error()) < 0
	})
	for _, d := range r.Damage {
		if text := d.Error(); !slices.Contains(s.Damage, text) {
			s.Damage = append(s.Damage, text)
		}
	}
	return s, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (s *Summary) count(w *SpanSweep) {
	s.Sweeps++
	s.Rows += len(w.Rows)
	s.Lost += w.Lost
	s.Seconds += w.Period.Seconds()
	if w.Delay > w.Period {
		s.Late++
	}
}

func (s *Summary) gap(g Gap) {
	s.Missing += g.Seconds()
	if len(s.Gaps) >= maxGaps {
		s.GapsMore++
		return
	}
	s.Gaps = append(s.Gaps, g)
}

// GroupKeys returns the properties by which NewTotals can group samples.
func GroupKeys() []string {
	return []string{
		"wait", "query", byPID, "user", "application", "database", byBlocker, "state", "type", "phrase", "plpgsql", "stack",
	}
}

// Keys that Totals treats specially.
const (
	byPID     = "pid"
	byBlocker = "blocker"
)

// Total counts the samples that have the same keys.
type Total struct {
	Keys    []string
	Samples int
	Seconds float64 // of all samples
	// Before counts the samples of the span with which a comparison compares this one.
	Before struct {
		Samples int
		Seconds float64
	}
}

// Totals groups samples by some of GroupKeys, and counts each group.
type Totals struct {
	// Only selects the sessions that Add counts; nil: all. Sessions that are not counted can still be blockers.
	Only func(*Row) bool

	by  []string
	m   map[string]*Total
	all float64
	// comparison is set by NewComparison: the key of a blocker then has no PID, because PIDs differ between spans. before is set
	// while Add counts the other span.
	comparison, before bool
}

const maxTotals = 100_000

// NewTotals groups samples by these keys, which must be in GroupKeys.
func NewTotals(by []string) *Totals { return &Totals{by: by, m: map[string]*Total{}} }

// NewComparison groups the samples of two spans by these keys. Add counts the first span. After a call of Other, Add counts the
// other span. Both spans share the limit on the number of groups, so a key has its own Total in both spans or in neither.
func NewComparison(by []string) *Totals {
	t := NewTotals(by)
	t.comparison = true
	return t
}

// Other begins the other span of a comparison.
func (t *Totals) Other() { t.before = true }

// Add counts the rows of a sweep. It ignores sessions that ended before the sweep. If blocker is one of the keys, a session counts
// once for each Root that it waits for, and a session that no process blocks does not count.
func (t *Totals) Add(s *SpanSweep) {
	var roots *Roots
	if slices.Contains(t.by, byBlocker) {
		roots = NewRoots(s)
	}
	for i := range s.Rows {
		row := &s.Rows[i]
		if row.Ended || t.Only != nil && !t.Only(row) {
			continue
		}
		if !t.before {
			t.all += s.Period.Seconds()
		}
		if roots == nil {
			t.add(s, row, "")
			continue
		}
		for _, root := range roots.Of(row) {
			t.add(s, row, roots.text(root, t.comparison))
		}
	}
}

// add counts a row for the text of a blocker, which is used only if blocker is one of the keys.
func (t *Totals) add(s *SpanSweep, row *Row, blocker string) {
	keys := make([]string, len(t.by))
	start := ""
	for i, by := range t.by {
		if keys[i] = key(by, row, blocker); by == byPID {
			start = "\x00" + strconv.FormatInt(row.Start, 10) // another process may have had the same id
		}
	}
	id := strings.Join(keys, "\x00") + start
	total := t.m[id]
	if total == nil {
		if len(t.m) >= maxTotals {
			for i := range keys {
				keys[i] = "(others)"
			}
			id = "\x00others"
			total = t.m[id]
		}
		if total == nil {
			total = &Total{Keys: keys}
			t.m[id] = total
		}
	}
	if t.before {
		total.Before.Samples++
		total.Before.Seconds += s.Period.Seconds()
		return
	}
	total.Samples++
	total.Seconds += s.Period.Seconds()
}

// List returns the totals, the one with most seconds first, and the seconds of all samples. A sample with several blockers is in
// several totals, but counts only once in the result all.
func (t *Totals) List() (list []*Total, all float64) {
	for _, total := range t.m {
		list = append(list, total)
	}
	slices.SortFunc(list, func(a, b *Total) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), slices.Compare(a.Keys, b.Keys))
	})
	return list, t.all
}

// tiny prevents a division by zero seconds.
const tiny = 1e-9

// Changes returns the totals of a comparison, the largest change of the average number of sessions first. The average is the
// total's seconds divided by the recorded seconds of the span, so a gap in a span does not look like less work. The function text
// returns the text of a key. Totals with equal texts are added up.
func (t *Totals) Changes(recorded, recordedBefore float64, text func(by, key string) string) []*Total {
	merged := map[string]*Total{}
	for _, total := range t.m {
		keys := make([]string, len(total.Keys))
		for i, k := range total.Keys {
			keys[i] = text(t.by[i], k)
		}
		id := strings.Join(keys, "\x00")
		sum := merged[id]
		if sum == nil {
			sum = &Total{Keys: keys}
			merged[id] = sum
		}
		sum.Samples += total.Samples
		sum.Seconds += total.Seconds
		sum.Before.Samples += total.Before.Samples
		sum.Before.Seconds += total.Before.Seconds
	}
	list := slices.Collect(maps.Values(merged))
	change := func(t *Total) float64 {
		return math.Abs(t.Seconds/max(recorded, tiny) - t.Before.Seconds/max(recordedBefore, tiny))
	}
	slices.SortFunc(list, func(a, b *Total) int {
		return cmp.Or(cmp.Compare(change(b), change(a)), cmp.Compare(b.Seconds, a.Seconds), slices.Compare(a.Keys, b.Keys))
	})
	return list
}

func key(by string, row *Row, blocker string) string {
	switch by {
	case byPID:
		return strconv.Itoa(int(row.PID))
	case "application":
		return cmp.Or(row.App, "-")
	case "wait":
		return WaitName(row)
	case "query":
		return query(row)
	case "user":
		return ObjectName(row.User, row.UserID)
	case "database":
		return ObjectName(row.Database, row.DatabaseID)
	case "state":
		return cmp.Or(row.State, "-")
	case "type":
		return row.Type
	case "phrase":
		return cmp.Or(row.Phrase, "-")
	case "plpgsql":
		return cmp.Or(row.Function, "-")
	case "stack":
		return StackKey(row.Stack)
	}
	return blocker
}

// StackKey returns the key of a stack in a Total: the stack's id as text. StacksOf returns the frames for such a key.
func StackKey(id int64) string {
	if id == 0 {
		return "-"
	}
	return strconv.FormatInt(id, 10)
}

// StacksOf returns the frames of the stacks in list, by StackKey. Each Total has the stack's key at Keys[position]. The innermost
// frame is first. The map is nil if no Total has a stack.
func StacksOf(ctx context.Context, r *Reader, since, until time.Time, list []*Total, position int) (map[string][]string, error) {
	want := map[int64]bool{}
	for _, t := range list {
		if id, err := strconv.ParseInt(t.Keys[position], 10, 64); err == nil {
			want[id] = true
		}
	}
	if len(want) == 0 {
		return nil, nil //nolint:nilnil // no stack is wanted
	}
	found, err := r.Stacks(ctx, since, until, want)
	if err != nil {
		return nil, err
	}
	frames := make(map[string][]string, len(found))
	for id, k := range found {
		frames[StackKey(id)] = k.Frames
	}
	return frames, nil
}

// WaitName returns the wait event of a row as "type:event", or "no wait".
func WaitName(row *Row) string {
	if row.WaitType == "" {
		return "no wait"
	}
	return row.WaitType + ":" + row.WaitEvent
}

// ObjectName returns the name of an object, or its OID if the name is empty, or "-" if both are unknown.
func ObjectName(name string, oid uint32) string {
	switch {
	case name != "":
		return name
	case oid != 0:
		return "oid " + strconv.FormatUint(uint64(oid), 10)
	}
	return "-"
}

func query(row *Row) string {
	switch {
	case row.Query != "":
		return row.Query
	case row.QueryID != 0:
		return "query id " + strconv.FormatInt(row.QueryID, 10)
	}
	return "-"
}

const preparedTransaction = "prepared transaction"

// text describes a root for people: its process id, application, type, user and state. It adds that the process itself waits for a
// lock whose holders the recorder could not read. With anonymous, the text has no process id.
func (r *Roots) text(root Root, anonymous bool) string {
	switch {
	case root.Deadlock:
		return "deadlock"
	case root.PID == 0:
		return preparedTransaction
	}
	row := r.rows[root.PID]
	if row == nil && anonymous {
		return "a process without a record"
	}
	name := strconv.Itoa(int(root.PID))
	if row == nil {
		return name
	}
	about := strings.Join([]string{row.Type, ObjectName(row.User, row.UserID), cmp.Or(row.State, "-")}, ", ")
	if row.WaitType == "Lock" {
		about += ", waits for an unknown process"
	}
	if anonymous {
		name = ""
	}
	if name = strings.TrimSpace(name + " " + row.App); name == "" {
		return about
	}
	return name + " (" + about + ")"
}
