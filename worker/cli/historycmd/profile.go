package historycmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/units"
)

// maxHistorySamples is the largest number of different samples of a profile. Further samples are added up, without labels and
// stacks.
const maxHistorySamples = 100_000

// historySample has the properties by which the samples of a profile are distinguished. Samples with the same properties are added
// up.
type historySample struct {
	pid, leader                                      int32
	kind, database, user, app, state, waitType, wait string
	phrase                                           string
	queryID                                          int64
	query                                            string // with html only
	stack                                            int64
}

type historyWeight struct {
	samples int64
	time    time.Duration
}

// historyProfile makes a profile and a time axis from the sweeps of a span.
type historyProfile struct {
	since, until time.Time
	texts        bool // the profile must have the texts of queries
	folded       bool // samples are distinguished only by the properties that a line of folded stacks shows
	samples      map[historySample]*historyWeight
	stacks       map[int64]bool             // numbers of the stacks of samples
	columns      []map[string]time.Duration // columns of the time axis: session time by wait class
	recorded     []time.Duration            // recorded time of each column
	gaps         []profilefmt.TimelineGap
	merged       bool                  // there were more than maxHistorySamples different samples
	only         func(*store.Row) bool // selects the sessions
}

func newHistoryProfile(since, until time.Time, texts bool) *historyProfile {
	const most = profilefmt.MaxColumns / 2
	columns := min(most, max(1, int(until.Sub(since)/time.Second)))
	return &historyProfile{
		since: since, until: until, texts: texts, samples: map[historySample]*historyWeight{}, stacks: map[int64]bool{},
		columns: make([]map[string]time.Duration, columns), recorded: make([]time.Duration, columns),
	}
}

// sweep adds a sweep. gap is the gap before it; nil: none.
func (h *historyProfile) sweep(s *store.SpanSweep, gap *store.Gap) error {
	if gap != nil {
		h.gaps = append(h.gaps, profilefmt.TimelineGap{From: gap.From, To: gap.To, Reason: gapReason(s)})
	}
	// A sweep stands for its period, the time before it. Use the middle of this time.
	part := s.Time.Add(-s.Period/2).Sub(h.since).Seconds() / h.until.Sub(h.since).Seconds()
	at := int(min(1, max(0, part)) * float64(len(h.columns)))
	at = min(len(h.columns)-1, at)
	h.recorded[at] += s.Period
	for i := range s.Rows {
		row := &s.Rows[i]
		if row.Ended || !h.only(row) {
			continue
		}
		class := cmp.Or(row.WaitType, running)
		if h.columns[at] == nil {
			h.columns[at] = map[string]time.Duration{}
		}
		h.columns[at][class] += s.Period
		h.add(row, s.Period)
	}
	return nil
}

// running is the wait class of samples without a wait event.
const running = "CPU"

func (h *historyProfile) add(row *store.Row, period time.Duration) {
	k := historySample{
		pid: row.PID, leader: row.Leader, kind: row.Type, database: dashless(store.ObjectName(row.Database, row.DatabaseID)),
		user: dashless(store.ObjectName(row.User, row.UserID)), app: row.App, state: row.State, waitType: row.WaitType, wait: row.WaitEvent,
		phrase: row.PhraseKey, queryID: row.QueryID, stack: row.Stack,
	}
	if h.texts {
		k.query = row.Query
	}
	if h.folded {
		k = historySample{kind: row.Type, waitType: row.WaitType, wait: row.WaitEvent, stack: row.Stack}
	}
	w := h.samples[k]
	if w == nil && len(h.samples) >= maxHistorySamples {
		h.merged = true
		k = historySample{}
		w = h.samples[k]
	}
	if w == nil {
		w = &historyWeight{}
		h.samples[k] = w
		h.stacks[k.stack] = true
	}
	w.samples++
	w.time += period
}

// gapReason says why there is a gap before the sweep s.
func gapReason(s *store.SpanSweep) string {
	var parts []string
	if s.Lost > 0 {
		parts = append(parts, units.Count(s.Lost, "sweep")+" could not be written")
	}
	if s.Note != "" {
		parts = append(parts, "the next sweep has the note: "+s.Note)
	}
	if parts == nil {
		return "the worker did not run, or the clock was set"
	}
	return strings.Join(parts, "; ")
}

// finish adds the gap at the end of the span, if no sweep was recorded there.
func (h *historyProfile) finish(s *store.Summary) {
	if n := len(s.Gaps); n > 0 && (len(h.gaps) == 0 || s.Gaps[n-1].From.After(h.gaps[len(h.gaps)-1].From)) {
		h.gaps = append(h.gaps, profilefmt.TimelineGap{From: s.Gaps[n-1].From, To: s.Gaps[n-1].To, Reason: "no later sweep is recorded"})
	}
}

// timeline returns the time axis. Each column has the average number of sessions, by wait class, in the recorded part of its time.
func (h *historyProfile) timeline() *profilefmt.Timeline {
	t := &profilefmt.Timeline{Since: h.since, Until: h.until, Noun: "sessions", Gaps: h.gaps, Columns: make([][]float64, len(h.columns))}
	seen := map[string]bool{}
	for _, column := range h.columns {
		for class := range column {
			seen[class] = true
		}
	}
	for _, class := range []string{running, "IO", "Lock", "LWLock", "BufferPin", "Buffer", "IPC", "Client", "Timeout", "Extension"} {
		if seen[class] {
			t.Classes = append(t.Classes, class)
			delete(seen, class)
		}
	}
	const most = 20 // PostgreSQL has fewer classes, but a forged file may have more
	others := make([]string, 0, len(seen))
	for class := range seen {
		others = append(others, class)
	}
	slices.Sort(others)
	t.Classes = append(t.Classes, others[:min(most, len(others))]...)
	for i, column := range h.columns {
		t.Columns[i] = make([]float64, len(t.Classes))
		for j, class := range t.Classes {
			t.Columns[i][j] = share(column[class].Seconds(), h.recorded[i].Seconds())
		}
	}
	return t
}

// profile returns the samples with their stacks and labels, the largest first.
func (h *historyProfile) profile(stacks map[int64]store.Stack) *pprof.Profile {
	p := &pprof.Profile{
		SampleType:        []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "wall", Unit: "nanoseconds"}},
		DefaultSampleType: "wall", TimeNanos: h.since.UnixNano(),
	}
	unit := time.Nanosecond
	if h.folded { // the format shows no unit, and the recorder measures only whole milliseconds
		unit, p.SampleType[1].Unit = time.Millisecond, "milliseconds"
	}
	b := profilefmt.NewBuilder(p)
	named := map[int64][]*pprof.Location{0: {b.Named("[no stack]")}}
	for id, k := range stacks {
		list := make([]*pprof.Location, 0, len(k.Frames)+1)
		for _, frame := range k.Frames {
			list = append(list, b.Named(cmp.Or(frame, "?")))
		}
		if k.Cut != "" || len(list) == 0 {
			list = append(list, b.Named("..."))
		}
		named[id] = list
	}
	keys := make([]historySample, 0, len(h.samples))
	for k := range h.samples {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y historySample) int {
		return cmp.Or(cmp.Compare(h.samples[y].time, h.samples[x].time), cmp.Compare(x.pid, y.pid), cmp.Compare(x.stack, y.stack),
			strings.Compare(x.wait, y.wait), cmp.Compare(x.queryID, y.queryID), strings.Compare(x.state, y.state))
	})
	waits := map[string]*pprof.Location{}
	wait := func(name string) *pprof.Location {
		if waits[name] == nil {
			waits[name] = b.Named(name)
		}
		return waits[name]
	}
	for _, k := range keys {
		locations := named[k.stack]
		if locations == nil {
			locations = named[0] // the file with the stack cannot be read
		}
		w := h.samples[k]
		if h.folded {
			name := store.WaitName(&store.Row{WaitType: k.waitType, WaitEvent: k.wait})
			locations = append([]*pprof.Location{wait("[" + name + "]")}, locations...)
		}
		p.Sample = append(p.Sample, &pprof.Sample{
			Location: locations, Label: k.labels(), Value: []int64{w.samples, int64(w.time.Round(unit) / unit)},
		})
	}
	return p
}

// labels returns the labels of a sample, with the names that the command profile uses.
func (k *historySample) labels() map[string][]string {
	l := map[string][]string{}
	put := func(name, value string) {
		if value != "" {
			l[name] = []string{value}
		}
	}
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	put(clusterprofile.LabelPID, number(int64(k.pid)))
	put("leader_pid", number(int64(k.leader)))
	put(clusterprofile.LabelBackendType, k.kind)
	put(clusterprofile.LabelDatabase, k.database)
	put(clusterprofile.LabelUser, k.user)
	put(clusterprofile.LabelApplication, k.app)
	put(clusterprofile.LabelQueryID, number(k.queryID))
	put(clusterprofile.LabelWaitType, k.waitType)
	put(clusterprofile.LabelWaitEvent, k.wait)
	put(clusterprofile.LabelState, k.state)
	put("phrase_key", k.phrase)
	put("query", k.query)
	return l
}

// runProfile writes the span as a profile.
func (f *historyFlags) runProfile(ctx context.Context, out, errOut io.Writer, since, until time.Time) error {
	r, id, err := f.reader()
	if err != nil {
		return err
	}
	h := newHistoryProfile(since, until, f.format == profilefmt.HTML)
	h.folded = f.format == profilefmt.Folded
	meta, _ := r.Meta()
	p := f.printer(out, errOut, id, &meta)
	p.zone, h.only = since.Location(), p.only
	summary, err := store.ReadSpan(ctx, r, since, until, func(s *store.SpanSweep, gap *store.Gap) error {
		p.own.begin(s)
		return h.sweep(s, gap)
	})
	if err == nil {
		err = noSweeps(r, &summary)
	}
	if err != nil {
		return err
	}
	h.finish(&summary)
	stacks, err := r.Stacks(ctx, since, until, h.stacks)
	if err != nil {
		return err
	}
	var notes strings.Builder
	p.problems(&notes, &summary, &p.own)
	lines := strings.Split(strings.TrimSpace(notes.String()), "\n")
	if h.merged {
		lines = append(lines, fmt.Sprintf("beyond %d different samples, the rest is counted without labels and stacks", maxHistorySamples))
	}
	made := h.profile(stacks)
	made.DurationNanos = int64(summary.Seconds * float64(time.Second)) // without gaps, so that averages are right
	made.Comments = append([]string{"pg_stat_backtrace: history of cluster " + id}, lines...)
	for _, line := range lines {
		console.Tellf(errOut, "%s", line)
	}
	zone, _ := since.Zone()
	return profilefmt.Write(out, made, profilefmt.Options{
		Format: f.format, Title: "Recorded sessions", Notes: lines, Root: []string{clusterprofile.LabelBackendType}, Timeline: h.timeline(),
		Subtitle: fmt.Sprintf("cluster %s, PostgreSQL %s, %s to %s, times in %s", id, cmp.Or(meta.ServerVersion, "?"),
			since.Format(historyTime), until.Format(historyTime), zone),
	})
}
