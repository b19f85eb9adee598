package historycmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

// historyPrinter prints the sweeps or the totals of a span.
type historyPrinter struct {
	f           *historyFlags
	out, errOut io.Writer
	id          string
	meta        *store.Meta
	totals      *store.Totals // nil without --by
	spans       *spanPrinter  // nil, except for text without --by and --each-sweep
	csv         *table.Writer
	json        *json.Encoder
	zone        *time.Location
	// table is the form of tables. left has the columns that had no room in one.
	table table.Options
	left  []string
	// stacks has the frames of the stacks that are keys of totals (--by stack). It must be set before the call of finish.
	stacks map[string][]string
	own    ownRows
}

// ownRows finds the rows of pg_stat_backtrace's own sessions that are left out, and counts them.
type ownRows struct {
	rows int
	took time.Duration
	// period is of the current sweep. kept has the own sessions in it that are not left out: they block another session, or it blocks
	// them.
	period time.Duration
	kept   map[int32]bool
}

// begin prepares the count of a sweep.
func (o *ownRows) begin(s *store.SpanSweep) {
	o.period, o.kept = s.Period, map[int32]bool{}
	own := map[int32]bool{}
	for i := range s.Rows {
		own[s.Rows[i].PID] = isOwn(&s.Rows[i])
	}
	for i := range s.Rows {
		r := &s.Rows[i]
		for j := range r.BlockedBy {
			if blocker := r.BlockedBy[j].PID; own[blocker] != own[r.PID] {
				o.kept[blocker], o.kept[r.PID] = true, true
			}
		}
	}
}

func (f *historyFlags) printer(out, errOut io.Writer, id string, meta *store.Meta) *historyPrinter {
	p := &historyPrinter{f: f, out: out, errOut: errOut, id: id, meta: meta, table: table.Options{Empty: "-"}}
	if !f.wide {
		p.table.Width = console.TerminalWidth(out)
	}
	switch {
	case f.compare != "":
		p.totals = store.NewComparison(f.keys())
	case len(f.by) > 0:
		p.totals = store.NewTotals(f.by)
	}
	if p.totals != nil {
		p.totals.Only = p.only
	}
	switch f.format {
	case console.FormatCSV:
		p.csv = table.CSV(out)
	case console.FormatJSON:
		p.json = render.JSONEncoder(out)
	}
	return p
}

const historyTime = "2006-01-02 15:04:05.000 -0700"

// begin prints the heading.
func (p *historyPrinter) begin(since, until time.Time) {
	p.zone = since.Location()
	switch {
	case p.csv != nil && p.totals == nil:
		p.csv.Row(historyHeader()...)
	case p.f.format == console.FormatText:
		zone, _ := since.Zone()
		_, _ = fmt.Fprintf(p.out, "cluster %s (PostgreSQL %s, %s): %s to %s, times in %s\n", p.id,
			cmp.Or(render.VisibleLine(p.meta.ServerVersion), "?"), cmp.Or(render.VisibleLine(p.meta.DataDir), "?"), since.Format(historyTime),
			until.Format(historyTime), zone)
		if p.totals == nil && !p.f.eachSweep {
			p.spans = newSpanPrinter(p.out, p.table, since, until, p.queryWidth())
		}
	}
}

// queryWidth returns the largest number of characters of a query or a key; 0: only the terminal bounds it.
func (p *historyPrinter) queryWidth() int {
	if p.table.Width > 0 && !p.f.widthGiven {
		return 0
	}
	return p.f.width
}

// sweep prints one sweep or, with --by, adds it to the totals.
func (p *historyPrinter) sweep(s *store.SpanSweep, gap *store.Gap) error {
	p.own.begin(s)
	switch {
	case p.totals != nil:
		p.totals.Add(s)
		return nil
	case p.spans != nil:
		return p.spans.add(s, gap, p.only)
	}
	only := p.f.chosen // CSV and JSON have the own sessions too
	if p.f.format == console.FormatText {
		only = p.only
	}
	s.Rows = slices.DeleteFunc(s.Rows, func(r store.Row) bool { return !only(&r) })
	switch p.f.format {
	case console.FormatCSV:
		for i := range s.Rows {
			p.csv.Row(p.row(s, &s.Rows[i])...)
		}
		return p.csv.Flush()
	case console.FormatJSON:
		return p.jsonSweep(s)
	}
	return p.text(s, gap)
}

// only reports whether a row is printed or counted: its process is chosen, and it is no session of pg_stat_backtrace itself, except
// with --own, and for the own sessions in ownRows.kept.
func (p *historyPrinter) only(r *store.Row) bool {
	if !p.f.chosen(r) {
		return false
	}
	if p.f.own || !isOwn(r) || len(p.f.pids) > 0 || p.own.kept[r.PID] {
		return true
	}
	if !r.Ended {
		p.own.rows++
		p.own.took += p.own.period
	}
	return false
}

// chosen reports whether --pid selects the process of a row.
func (f *historyFlags) chosen(r *store.Row) bool {
	return len(f.pids) == 0 || slices.Contains(f.pids, int(r.PID))
}

// isOwn reports whether a row is of a session of pg_stat_backtrace, by its application_name.
func isOwn(r *store.Row) bool {
	return r.App == cluster.ApplicationName || strings.HasPrefix(r.App, cluster.ApplicationName+" ")
}

func historyHeader() []string {
	return []string{
		"time", "pid", "backend_type", "database", "user", "application_name", "client", "state", "wait_event", "wait_age",
		"xact_age", "query_age", "blocked_by", "query", "ended", "period", "phrase", "plpgsql", "stack", "waits_in_front", "lock",
	}
}

// row returns the columns of a session.
func (p *historyPrinter) row(s *store.SpanSweep, r *store.Row) []string {
	at := s.Time.UnixMicro()
	wait := ""
	if r.WaitType != "" {
		wait = store.WaitName(r)
	}
	return []string{
		s.Time.In(p.zone).Format(time.RFC3339Nano), strconv.Itoa(int(r.PID)), r.Type, dashless(store.ObjectName(r.Database, r.DatabaseID)),
		dashless(store.ObjectName(r.User, r.UserID)), r.App, r.Client, r.State, wait, age(at, r.WaitStart), age(at, r.XactStart),
		age(at, r.QueryStart), blockersOf(r, false), query(r), strconv.FormatBool(r.Ended), strconv.FormatFloat(s.Period.Seconds(), 'f', 3, 64),
		r.Does(), r.Function, dashless(store.StackKey(r.Stack)), blockersOf(r, true), lockOf(r),
	}
}

func dashless(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

func query(r *store.Row) string {
	if r.Query == "" && r.QueryID != 0 {
		return "query id " + strconv.FormatInt(r.QueryID, 10)
	}
	return r.Query
}

// age returns the seconds from since to now as text; empty: not known, as since is 0 or ahead of now. Both are in µs since 1970.
func age(now, since int64) string {
	if !hasAge(now, since) {
		return ""
	}
	return strconv.FormatFloat(max(0, float64(now-since)/1e6), 'f', 1, 64)
}

// blockersOf lists the PIDs of the blockers of a session, 0 for a prepared transaction. With inFront, it lists only the blockers
// that wait for the same lock before the session in the queue.
func blockersOf(r *store.Row, inFront bool) string {
	var list []string
	for i := range r.BlockedBy {
		if b := &r.BlockedBy[i]; b.Soft || !inFront {
			list = append(list, strconv.Itoa(int(b.PID)))
		}
	}
	return strings.Join(list, ",")
}

// lockOf returns the mode and the object for which a session waits.
func lockOf(r *store.Row) string {
	if len(r.BlockedBy) == 0 {
		return ""
	}
	return strings.TrimSpace(r.BlockedBy[0].Mode + " " + r.BlockedBy[0].Object)
}

// text prints the sessions of a sweep, with a line for each problem.
func (p *historyPrinter) text(s *store.SpanSweep, gap *store.Gap) error {
	if gap != nil {
		_, _ = fmt.Fprintln(p.out, p.gap(gap))
	}
	if len(s.Rows) == 0 && s.Note == "" && s.Lost == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(p.out, s.Time.In(p.zone).Format(historyTime))
	if s.Lost > 0 {
		_, _ = fmt.Fprintf(p.out, "  -- %s before could not be written\n", units.Count(s.Lost, "sweep"))
	}
	if s.Note != "" {
		_, _ = fmt.Fprintf(p.out, "  -- %s\n", render.VisibleLine(s.Note))
	}
	o := p.table
	o.Indent, o.NoHeader = "  ", true
	w := table.Fit(p.out, o, []table.Column{
		{}, {Least: 8, Drop: 1}, {Least: 8, Drop: 2}, {Least: 6}, {Least: 14}, {Least: 15, Drop: 3}, {Least: 14}, {Least: 14}, {Least: 14},
	})
	w.Row("pid", "process", "session", "state", "wait", "transaction", "blocked by", "phrase", "query")
	for i := range s.Rows {
		w.Row(p.words(s, &s.Rows[i])...)
	}
	left, err := w.Flush()
	for _, name := range left {
		if !slices.Contains(p.left, name) {
			p.left = append(p.left, name)
		}
	}
	return err
}

// words returns the columns of a row for people.
func (p *historyPrinter) words(s *store.SpanSweep, r *store.Row) []string {
	const pid, kind, state, wait, phrase = 1, 2, 7, 8, 16
	row, at := p.row(s, r), s.Time.UnixMicro()
	text := cutQuery(query(r), p.queryWidth())
	if r.Ended {
		return []string{row[pid], row[kind], sessionText(r), row[state], "ended", "", "", "", text}
	}
	blocked := blockedText(r, nil)
	if blocked != "" {
		blocked = "blocked by " + blocked
	}
	return []string{
		row[pid], row[kind], sessionText(r), row[state], row[wait] + ageText(" ", at, r.WaitStart), ageText("transaction ", at, r.XactStart),
		blocked, row[phrase], text,
	}
}

// hasAge reports whether since is a time before now. It is 0 if it is not known, and ahead of now if the clock was set back.
func hasAge(now, since int64) bool {
	return since != 0 && !units.Ahead(time.UnixMicro(now), time.UnixMicro(since))
}

// ageText returns a text and the time from since to now for people, in the form of the command activity; empty: there is no age.
func ageText(text string, now, since int64) string {
	if !hasAge(now, since) {
		return ""
	}
	return text + units.Age(time.Duration(now-since)*time.Microsecond)
}

func (p *historyPrinter) gap(g *store.Gap) string {
	return fmt.Sprintf("-- not recorded: %s to %s (%s)", g.From.In(p.zone).Format(historyTime), g.To.In(p.zone).Format(historyTime),
		units.Age(g.To.Sub(g.From)))
}

// gaps prints a line for each gap, and how many further gaps there are.
func (p *historyPrinter) gaps(out io.Writer, s *store.Summary) {
	for i := range s.Gaps {
		_, _ = fmt.Fprintln(out, p.gap(&s.Gaps[i]))
	}
	if s.GapsMore > 0 {
		_, _ = fmt.Fprintf(out, "-- not recorded: %s more\n", units.Count(s.GapsMore, "gap"))
	}
}

// Sweep says what the sessions did at one time. Its figures count for the whole Period before that time.
type Sweep struct {
	Time    time.Time        `json:"time"`
	Period  float64          `json:"period_seconds"`
	Delay   float64          `json:"delay_seconds,omitempty"`
	Lost    int              `json:"lost_sweeps,omitempty"`
	Note    string           `json:"note,omitempty"`
	Session []historySession `json:"sessions"`
}

// historySession says what a session did at the time of a sweep. The members have the names of the columns of rows.parquet, a file
// of the history.
type historySession struct {
	PID        int32           `json:"pid"`
	Start      *time.Time      `json:"backend_start,omitempty"`
	Type       string          `json:"backend_type"`
	Database   string          `json:"database,omitempty"`
	DatabaseID uint32          `json:"database_oid,omitempty"`
	User       string          `json:"user,omitempty"`
	UserID     uint32          `json:"user_oid,omitempty"`
	App        string          `json:"application_name,omitempty"`
	Client     string          `json:"client,omitempty"`
	State      string          `json:"state,omitempty"`
	XactStart  *time.Time      `json:"xact_start,omitempty"`
	QueryStart *time.Time      `json:"query_start,omitempty"`
	StateStart *time.Time      `json:"state_start,omitempty"`
	WaitType   string          `json:"wait_event_type,omitempty"`
	WaitEvent  string          `json:"wait_event,omitempty"`
	WaitStart  *time.Time      `json:"wait_start,omitempty"`
	QueryID    int64           `json:"query_id,omitempty,string"`
	Query      string          `json:"query,omitempty"`
	Leader     int32           `json:"leader_pid,omitempty"`
	Ended      bool            `json:"ended,omitempty"`
	BlockedBy  []store.Blocker `json:"blocked_by,omitempty"`
	Phrase     string          `json:"phrase,omitempty"`
	PhraseKey  string          `json:"phrase_key,omitempty"`
	Function   string          `json:"plpgsql,omitempty"`
	Stack      int64           `json:"stack,omitempty,string"`
	Method     string          `json:"method,omitempty"`
}

func (p *historyPrinter) jsonSweep(s *store.SpanSweep) error {
	at := func(micro int64) *time.Time {
		if micro == 0 {
			return nil
		}
		t := time.UnixMicro(micro).In(p.zone)
		return &t
	}
	line := Sweep{
		Time: s.Time.In(p.zone), Period: s.Period.Seconds(), Delay: s.Delay.Seconds(), Lost: s.Lost, Note: s.Note,
		Session: make([]historySession, len(s.Rows)),
	}
	for i := range s.Rows {
		r := &s.Rows[i]
		line.Session[i] = historySession{
			PID: r.PID, Start: at(r.Start), Type: r.Type, Database: r.Database, DatabaseID: r.DatabaseID, User: r.User, UserID: r.UserID,
			App: r.App, Client: r.Client, State: r.State, XactStart: at(r.XactStart), QueryStart: at(r.QueryStart),
			StateStart: at(r.StateStart), WaitType: r.WaitType, WaitEvent: r.WaitEvent, WaitStart: at(r.WaitStart), QueryID: r.QueryID,
			Query: r.Query, Leader: r.Leader, Ended: r.Ended, BlockedBy: r.BlockedBy,
			Phrase: r.Does(), PhraseKey: r.PhraseKey, Function: r.Function, Stack: r.Stack, Method: r.Method,
		}
	}
	return p.json.Encode(line)
}

// finish prints the totals, and how much of the span was recorded.
func (p *historyPrinter) finish(s *store.Summary) error {
	switch p.f.format {
	case console.FormatJSON:
		return p.jsonFinish(s)
	case console.FormatCSV:
		if p.totals != nil {
			p.csvTotals()
		}
		err := p.csv.Flush()
		p.problems(p.errOut, s, &p.own)
		return err
	}
	if p.totals != nil {
		if err := p.textTotals(s); err != nil {
			return err
		}
		p.gaps(p.out, s)
	} else if n := len(s.Gaps); n > 0 && s.Gaps[n-1].To.Add(time.Second).After(s.Until) {
		if p.spans == nil {
			_, _ = fmt.Fprintln(p.out, p.gap(&s.Gaps[n-1]))
		} else {
			p.spans.gap(&s.Gaps[n-1])
		}
	}
	if p.spans != nil {
		if err := p.spans.print(); err != nil {
			return err
		}
		p.left = p.spans.left
	}
	if err := table.NoRoom(p.out, p.left); err != nil {
		return err
	}
	p.problems(p.out, s, &p.own)
	return nil
}

// problems prints how much of the span was recorded, which rows are left out, and which parts of the files are damaged.
func (p *historyPrinter) problems(out io.Writer, s *store.Summary, own *ownRows) {
	missing := time.Duration(s.Missing * float64(time.Second))
	_, _ = fmt.Fprintf(out, "%s, %s; not recorded: %s in %s; sweeps lost: %d, late: %d\n", units.Count(s.Sweeps, "sweep"),
		units.Count(s.Rows, "row"), units.Age(missing), units.Count(len(s.Gaps)+s.GapsMore, "gap"), s.Lost, s.Late)
	if own.rows > 0 {
		_, _ = fmt.Fprintf(out, "left out: %s, %.1f s, of pg_stat_backtrace's own sessions (--own shows them)\n",
			units.Count(own.rows, "row"), own.took.Seconds())
	}
	for _, d := range s.Damage {
		_, _ = fmt.Fprintf(out, "damaged: %s\n", render.VisibleLine(d))
	}
}

// Summary is the last line of the command's output in the format json.
type Summary struct {
	// Cluster is the name of the folder with the recorded files of the server.
	Cluster       string         `json:"cluster"`
	ServerVersion string         `json:"server_version"`
	TimeZone      string         `json:"time_zone"`
	Summary       *store.Summary `json:"summary"`
	// Totals are absent without --by.
	Totals []historyTotal `json:"totals,omitempty"`
	// Sampled is the sum of the seconds of all totals, including totals that --limit leaves out.
	Sampled *float64 `json:"sampled_seconds,omitempty"`
	// Own is the time of pg_stat_backtrace's own sessions, which the totals leave out without --own.
	Own float64 `json:"own_seconds,omitempty"`
}

// historyTotal is the sum of the samples with the same keys.
type historyTotal struct {
	// Keys has a member for each property of --by.
	Keys    map[string]string `json:"keys"`
	Samples int               `json:"samples"`
	Seconds float64           `json:"seconds"`
	// Percent is the share of Seconds in sampled_seconds.
	Percent float64 `json:"percent"`
	// Deprecated: read percent.
	Share float64 `json:"share"`
}

func (p *historyPrinter) jsonFinish(s *store.Summary) error {
	result := Summary{Cluster: p.id, ServerVersion: p.meta.ServerVersion, TimeZone: p.zone.String(), Summary: s}
	if p.totals != nil {
		list, all := p.largest()
		for _, t := range list {
			part := share(t.Seconds, all)
			total := historyTotal{map[string]string{}, t.Samples, t.Seconds, 100 * part, part} //nolint:mnd // percent
			for j, by := range p.f.by {
				total.Keys[by] = p.keyText(by, t.Keys[j])
			}
			result.Totals = append(result.Totals, total)
		}
		result.Sampled, result.Own = &all, p.own.took.Seconds()
	}
	return p.json.Encode(result)
}

func share(part, all float64) float64 {
	if all <= 0 {
		return 0
	}
	return part / all
}

func (p *historyPrinter) largest() ([]*store.Total, float64) {
	list, all := p.totals.List()
	if p.f.limit > 0 && len(list) > p.f.limit {
		list = list[:p.f.limit]
	}
	return list, all
}

func (p *historyPrinter) csvTotals() {
	p.csv.Row(append([]string{"seconds", "share", "samples"}, p.f.by...)...)
	list, all := p.largest()
	for _, t := range list {
		row := []string{
			strconv.FormatFloat(t.Seconds, 'f', 3, 64), strconv.FormatFloat(share(t.Seconds, all), 'f', 4, 64), strconv.Itoa(t.Samples),
		}
		for j, k := range t.Keys {
			row = append(row, p.keyText(p.f.by[j], k))
		}
		p.csv.Row(row...)
	}
}

func (p *historyPrinter) textTotals(s *store.Summary) error {
	const percent = 100
	w := p.keyTable(p.f.by)
	w.Row(append([]string{"seconds", "share", "average"}, p.f.by...)...)
	list, all := p.largest()
	for _, t := range list {
		row := []string{
			fmt.Sprintf("%.1f", t.Seconds), fmt.Sprintf("%.1f %%", percent*share(t.Seconds, all)), fmt.Sprintf("%.2f", share(t.Seconds, s.Seconds)),
		}
		for j, k := range t.Keys {
			row = append(row, cutQuery(p.keyText(p.f.by[j], k), p.queryWidth()))
		}
		w.Row(row...)
	}
	left, err := w.Flush()
	if err != nil {
		return err
	}
	p.left = left
	_, err = fmt.Fprintf(p.out, "%.1f sampled seconds of all sessions\n", all)
	return err
}

// keyTable returns a table with three columns of figures, and a column for each key.
func (p *historyPrinter) keyTable(keys []string) *table.Fitted {
	columns := make([]table.Column, 3, 3+len(keys)) //nolint:mnd // figures
	for i := range keys {
		columns = append(columns, table.Column{Least: 10, Drop: i})
	}
	o := p.table
	o.Empty = ""
	return table.Fit(p.out, o, columns)
}

const stackKey = "stack"

// keyText returns a key as text. For a stack, the text has the functions, the innermost first.
func (p *historyPrinter) keyText(by, key string) string {
	frames := p.stacks[key]
	if by != stackKey || len(frames) == 0 {
		return key
	}
	return strings.Join(frames, " < ")
}

// readStacks reads the frames of the stacks that are keys of the largest totals.
func (p *historyPrinter) readStacks(ctx context.Context, r *store.Reader, since, until time.Time) (err error) {
	i := slices.Index(p.f.by, stackKey)
	if p.totals == nil || i < 0 {
		return nil
	}
	list, _ := p.largest()
	p.stacks, err = store.StacksOf(ctx, r, since, until, list, i)
	return err
}
