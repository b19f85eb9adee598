package historycmd

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

// maxPendingLines bounds the lines of a spanPrinter that are not printed yet. If there are more, it prints all of them, and
// sessions that do the same thereafter get a second line.
const maxPendingLines = 50_000

// spanPrinter prints a line for each time in which a session did the same: it ran one statement, or waited, or was blocked by the
// same processes. The lines are in the order of these times, with lines for gaps and notes between.
type spanPrinter struct {
	out   io.Writer
	zone  *time.Location
	clock string // format of the times
	table table.Options
	width int      // characters of a query; 0: the table decides
	left  []string // columns that had no room
	// lines are the lines to print, complete or not. open has the incomplete ones: of sessions, and of the note (zero key).
	lines []*spanLine
	open  map[spanKey]*spanLine
	sweep int // number of the current sweep
	begun bool
}

// spanKey identifies what a session does. Two rows with equal keys in successive sweeps are in one line.
type spanKey struct {
	pid                     int32
	start                   int64
	state, lock, blocked    string
	query                   string
	queryID, statementStart int64 // statementStart is 0 if text or id of the query are known
	note                    string
}

// spanLine is a line of the output.
type spanLine struct {
	from, to time.Time
	period   time.Duration // sum of the sweeps' periods
	sweep    int           // number of the last sweep with the session
	note     string        // with a note, the line has no session
	row      store.Row     // of the last sweep
	blocked  string
	// waits and phrases have the time by wait event and by phrase.
	waits, phrases shares
	// transactions and statements are the numbers of different start times.
	transactions, statements int
}

// newSpanPrinter returns a printer for a span in the time zone of its begin. width bounds the characters of a query; 0: only the
// terminal bounds them.
func newSpanPrinter(out io.Writer, o table.Options, since, until time.Time, width int) *spanPrinter {
	clock := time.TimeOnly
	if since.Format(time.DateOnly) != until.In(since.Location()).Format(time.DateOnly) {
		clock = "01-02 " + time.TimeOnly
	}
	return &spanPrinter{out: out, zone: since.Location(), clock: clock, table: o, width: width, open: map[spanKey]*spanLine{}}
}

// add adds a sweep. gap is the gap before it; nil: none. only selects the sessions.
func (p *spanPrinter) add(s *store.SpanSweep, gap *store.Gap, only func(*store.Row) bool) error {
	p.sweep++
	if gap != nil {
		clear(p.open) // what a session did before the gap may have ended in it
		p.gap(gap)
	}
	note := s.Note
	if s.Lost > 0 {
		note = strings.TrimSuffix(fmt.Sprintf("%s before could not be written; %s", units.Count(s.Lost, "sweep"), note), "; ")
	}
	if note != "" {
		p.extend(spanKey{note: note}, s).note = note
	}
	roots := store.NewRoots(s)
	for i := range s.Rows {
		if r := &s.Rows[i]; !r.Ended && only(r) {
			p.session(s, r, blockedText(r, roots))
		}
	}
	for key, line := range p.open {
		if line.sweep != p.sweep {
			delete(p.open, key)
		}
	}
	if len(p.lines) <= maxPendingLines {
		return nil
	}
	clear(p.open)
	return p.print()
}

// gap adds a line for a time without a record.
func (p *spanPrinter) gap(g *store.Gap) {
	p.lines = append(p.lines, &spanLine{from: g.From, to: g.To, period: g.To.Sub(g.From), note: "not recorded"})
}

// extend returns the line for a key, which has the sweep then. It makes the line if the sweep before has no line with this key.
func (p *spanPrinter) extend(key spanKey, s *store.SpanSweep) *spanLine {
	line := p.open[key]
	if line == nil {
		line = &spanLine{from: s.Time}
		p.open[key] = line
		p.lines = append(p.lines, line)
	}
	line.to, line.sweep = s.Time, p.sweep
	line.period += s.Period
	return line
}

func (p *spanPrinter) session(s *store.SpanSweep, r *store.Row, blocked string) {
	key := spanKey{pid: r.PID, start: r.Start, state: r.State, blocked: blocked, query: r.Query, queryID: r.QueryID}
	if r.WaitType == "Lock" {
		key.lock = r.WaitEvent
	}
	if r.Query == "" && r.QueryID == 0 {
		key.statementStart = r.QueryStart
	}
	line := p.extend(key, s)
	if line.row.XactStart != r.XactStart || line.transactions == 0 {
		line.transactions++
	}
	if line.row.QueryStart != r.QueryStart || line.statements == 0 {
		line.statements++
	}
	line.row, line.blocked = *r, blocked
	line.waits.add(store.WaitName(r), s.Period)
	line.phrases.add(r.Phrase, s.Period)
}

// print prints the pending lines.
func (p *spanPrinter) print() error {
	if len(p.lines) == 0 {
		return nil
	}
	slices.SortStableFunc(p.lines, func(a, b *spanLine) int {
		return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.row.PID, b.row.PID))
	})
	o := p.table
	o.NoHeader = p.begun && o.Width == 0 // on a terminal, further lines may have other columns
	p.begun = true
	t := table.Fit(p.out, o, spanColumns())
	t.Row("from", "to", "for", "pid", "process", "session", "state", "wait", "transaction", "blocked by", "phrase", "query")
	for _, line := range p.lines {
		t.Row(p.cells(line)...)
	}
	p.lines = nil
	left, err := t.Flush()
	for _, name := range left {
		if !slices.Contains(p.left, name) {
			p.left = append(p.left, name)
		}
	}
	return err
}

// spanColumns says how the columns of a spanPrinter adapt to a terminal. Columns with less use in an incident are left out first.
func spanColumns() []table.Column {
	return []table.Column{
		{}, {Drop: 8}, {}, {}, {Least: 8, Drop: 5}, {Least: 8, Drop: 7}, {Least: 6, Drop: 4}, {Least: 14, Drop: 2}, {Least: 8, Drop: 6},
		{Least: 12, Drop: 1}, {Least: 16, Drop: 3}, {Least: 18},
	}
}

// cells returns the columns of a line. A note is the last column of its line.
func (p *spanPrinter) cells(l *spanLine) []string {
	cells := []string{l.from.In(p.zone).Format(p.clock), l.to.In(p.zone).Format(p.clock), units.Age(l.period)}
	if l.note != "" {
		return append(cells, "-- "+l.note)
	}
	r := &l.row
	wait := l.waits.text(2)
	if len(l.waits) == 1 {
		wait += ageText(" ", l.to.UnixMicro(), r.WaitStart)
	}
	phrase := l.phrases.text(1)
	if r.Plan != "" && len(l.phrases) == 1 {
		phrase = r.Does()
	}
	return append(cells, strconv.Itoa(int(r.PID)), cmp.Or(r.App, r.Type), sessionText(r), r.State, wait, l.transaction(), l.blocked, phrase,
		cmp.Or(cutQuery(query(r), p.width), "-"))
}

// transaction returns the age of the transaction at the end of the line, or the number of transactions and statements that the
// sweeps have seen.
func (l *spanLine) transaction() string {
	var parts []string
	if age := ageText("", l.to.UnixMicro(), l.row.XactStart); l.transactions > 1 {
		parts = append(parts, fmt.Sprintf("%d or more", l.transactions))
	} else if age != "" {
		parts = append(parts, age)
	}
	if l.statements > 1 && l.transactions == 1 {
		parts = append(parts, fmt.Sprintf("%d or more statements", l.statements))
	}
	return strings.Join(parts, ", ")
}

// shares has times by a text.
type shares map[string]time.Duration

func (s *shares) add(text string, period time.Duration) {
	if *s == nil {
		*s = shares{}
	}
	(*s)[text] += period
}

// text returns the texts with the longest times, at most so many, with their shares if there are several.
func (s shares) text(most int) string {
	texts, all := make([]string, 0, len(s)), time.Duration(0)
	for text, took := range s {
		texts, all = append(texts, text), all+took
	}
	sort.Slice(texts, func(i, j int) bool {
		a, b := texts[i], texts[j]
		return cmp.Or(cmp.Compare(s[b], s[a]), cmp.Compare(a, b)) < 0
	})
	if len(texts) > 1 {
		for i, text := range texts {
			texts[i] = fmt.Sprintf("%s %.0f %%", cmp.Or(text, "-"), 100*share(s[text].Seconds(), all.Seconds()))
		}
	}
	return strings.Join(texts[:min(most, len(texts))], ", ")
}

// cutQuery returns a query of at most width characters; width 0: the whole query.
func cutQuery(text string, width int) string {
	if width == 0 {
		return text
	}
	return table.Cut(text, width)
}

// sessionText returns user and database of a session as user@database; empty: it has neither.
func sessionText(r *store.Row) string {
	user, database := dashless(store.ObjectName(r.User, r.UserID)), dashless(store.ObjectName(r.Database, r.DatabaseID))
	if user == "" || database == "" {
		return user + database
	}
	return user + "@" + database
}

// blockedText lists the blockers of a session, the roots if other processes are between, and the lock; empty: it is not blocked.
// roots may be nil.
func blockedText(r *store.Row, roots *store.Roots) string {
	const most = 4 // blockers
	if len(r.BlockedBy) == 0 {
		return ""
	}
	var list []string
	for i := range r.BlockedBy {
		b := &r.BlockedBy[i]
		text := strconv.Itoa(int(b.PID))
		if b.PID == 0 {
			text = "prepared transaction"
		}
		if b.Soft {
			text += " (waits in front)"
		}
		if list = append(list, text); len(list) == most && len(r.BlockedBy) > most {
			list = append(list, fmt.Sprintf("%d more", len(r.BlockedBy)-most))
			break
		}
	}
	text := strings.Join(list, ", ")
	if more := furtherRoots(r, roots); more != "" {
		text += " (root: " + more + ")"
	}
	return strings.TrimSpace(text + " " + lockWords(r))
}

// furtherRoots lists the roots of a session's waits that are not among its blockers; roots may be nil.
func furtherRoots(r *store.Row, roots *store.Roots) string {
	if roots == nil {
		return ""
	}
	var list []string
	for _, root := range roots.Of(r) {
		switch {
		case slices.ContainsFunc(r.BlockedBy, func(b store.Blocker) bool { return !root.Deadlock && b.PID == root.PID }):
		case root.Deadlock:
			list = append(list, "deadlock")
		case root.PID == 0:
			list = append(list, "prepared transaction")
		default:
			name := strconv.Itoa(int(root.PID))
			if row := roots.Row(root.PID); row != nil {
				name = strings.TrimSpace(name + " " + row.App)
			}
			list = append(list, name)
		}
	}
	return strings.Join(list, ", ")
}

// lockWords returns the mode and the object for which a session waits, with the name of a relation in place of its numbers.
func lockWords(r *store.Row) string {
	b := &r.BlockedBy[0]
	object, relation := moment.ObjectOf(b.Object)
	words, database := moment.LockWords(b.Lock, object, relation)
	switch {
	case relation == "" && b.Lock != "advisory" && database == "":
		words = b.Object
	case database != "" && database != strconv.FormatUint(uint64(r.DatabaseID), 10):
		words += " of database " + database
	}
	return strings.TrimSpace(render.VisibleLine(b.Mode) + " " + words)
}
