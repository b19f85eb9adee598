package source

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
)

// Bounds of the samples in memory.
const (
	maxSamples = 2 * 3600     // single samples, without minutes
	maxMinutes = 10 * 24 * 60 // samples that are minutes; see minutes.go
	maxRows    = 300_000      // of minutes, and again of single samples
	maxNames   = 50_000
	maxName    = 2 << 10  // bytes
	maxRowsOf  = 20_000   // rows of one sample
	maxBytes   = 16 << 20 // of all names
	maxSpans   = 1000     // in the answer about the waits of one session
	maxTexts   = 4000     // in normalized
)

// past has the newest samples, in ascending order of time. The rows of a sample have numbers in place of names, so a sample of
// 1,000 sessions takes some ten kilobytes. A past is not safe for concurrent use.
type past struct {
	samples    []sample
	rows       int // of all samples
	minuteRows int // of samples that are minutes
	most       int // largest number of rows; 0: maxRows
	names      names
	// normalized has the texts of statements without values, by their texts with values. It is cleared when it has maxTexts.
	normalized map[string]string
	// known has the rows of the newest sample, by process.
	known map[session]knownRow
	// hours has the hours whose recorded minutes are all in samples. The key is the begin of the hour, in seconds since 1970.
	hours  map[int64]bool
	first  string // the reason why there is no data before the first sample
	gap    string // the reason of gaps without a reason of their own; empty: reasonNotSampled
	stacks stackLog
}

// knownRow is a row, and the data of the session from which the row was made. The row is used again if this data is the same in
// the next sample, as for most sessions.
type knownRow struct {
	row   row
	query string
	id    int64
	event string
	class string // of the event
	app   string
	db    string
	user  string
	doing string
}

// sample is the active sessions at one time.
type sample struct {
	at     time.Time
	period time.Duration // length of the time before at for which the sample stands
	kind   Kind
	before string              // reason of a gap directly before this sample; empty: the reason in past.gap
	sums   [numClasses]float64 // active sessions by wait class
	rows   []row
	found  []found
}

// found is a finding of a sample, and the number of active sessions that it concerns.
type found struct {
	key    uint32
	active float32
}

const numClasses = 11

// row is an active session, or a session that is idle in a transaction.
type row struct {
	started   int64 // start of the process in µs since 1970; pid and started identify the process
	pid       int32
	class     int8    // an index of Classes, or idleClass
	weight    float32 // number of sessions: 1, or a mean in a minute
	event     uint32
	query     uint32
	user      uint32
	database  uint32
	app       uint32
	phrase    uint32
	kind      uint32
	queryTime int64
}

const idleClass int8 = -1

// names gives each key a number. Number 0 is the empty key.
type names struct {
	list  []entry
	index map[string]uint32
	bytes int
}

// entry is a key, and the name that a screen shows for the key. The first letter of a key says for which property it is; see
// prefixOf.
type entry struct {
	key, name string
	oid       uint32 // of a user or a database; 0: not known
}

func (n *names) number(key, name string) uint32 {
	if key == "" {
		return 0
	}
	if i, ok := n.index[key]; ok {
		return i
	}
	if n.index == nil {
		n.index, n.list = map[string]uint32{}, make([]entry, 1)
	}
	name = bounded(name)
	i := uint32(len(n.list))
	n.list, n.index[key] = append(n.list, entry{key: key, name: name}), i
	n.bytes += len(key) + len(name)
	return i
}

// find returns the number of a key. For users of a command line, it also accepts the name in place of the key.
func (n *names) find(prefix, key string) (uint32, bool) {
	if i, ok := n.index[prefix+key]; ok {
		return i, true
	}
	for i := range n.list {
		if e := &n.list[i]; e.name == key && strings.HasPrefix(e.key, prefix) {
			return uint32(i), true
		}
	}
	return 0, false
}

func (n *names) get(i uint32) entry {
	if int(i) >= len(n.list) {
		return entry{}
	}
	return n.list[i]
}

// bounded returns a copy of a text, cut after maxName bytes. As it is a copy, a larger string of which s is a part is not kept
// in memory.
func bounded(s string) string {
	if len(s) > maxName {
		n := maxName
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + "..."
	}
	return strings.Clone(s)
}

// add appends the active sessions of a moment. The sample stands for the time since the sample before it, but at most for the
// time longest.
func (p *past) add(m *moment.Moment, kind Kind, longest time.Duration) *sample {
	period := longest
	if n := len(p.samples); n > 0 {
		before := p.samples[n-1].at
		if !m.Time.After(before) { // the clock was set back: remove later samples, because the order must be ascending
			p.dropAfter(m.Time)
		} else {
			period = min(longest, m.Time.Sub(before))
		}
	}
	s := sample{at: m.Time, period: period, kind: kind}
	now := make(map[session]knownRow, len(p.known))
	for i := range m.Sessions {
		x := &m.Sessions[i]
		class := ClassOf(x)
		if class == "" && !inTransaction(x) || len(s.rows) >= maxRowsOf {
			continue
		}
		k := p.knownRow(x)
		now[identityOf(x)] = k
		r := k.row
		r.class = idleClass
		if class != "" {
			r.class = int8(slices.Index(Classes(), class))
			s.sums[r.class]++
		}
		s.rows = append(s.rows, r)
	}
	p.known = now
	p.samples = append(p.samples, s)
	p.rows += len(s.rows)
	p.bound()
	return &p.samples[len(p.samples)-1]
}

// knownRow returns the row of a session. If the session has not changed since the newest sample, this is the row of that sample.
func (p *past) knownRow(s *moment.Session) knownRow {
	k, ok := p.known[identityOf(s)]
	event, class := CPU, ""
	if s.Wait != nil {
		event, class = s.Wait.Event, s.Wait.Type
	}
	if ok && k.query == s.Query && k.id == s.QueryID && k.event == event && k.class == class && k.app == s.Application && k.db == s.Database &&
		k.user == s.User && k.doing == s.Phrase && k.row.queryTime == micro(s.QueryStart) {
		return k
	}
	return knownRow{p.row(s), s.Query, s.QueryID, event, class, s.Application, s.Database, s.User, s.Phrase}
}

// row returns the row of a session. It gives each property of the session its number.
func (p *past) row(s *moment.Session) row {
	r := row{
		pid: int32(s.ServerPID), started: micro(s.Started), queryTime: micro(s.QueryStart), weight: 1,
		event: p.names.number("e"+eventOf(s), eventOf(s)),
		user:  p.oid("u", s.User, s.UserOID), database: p.oid("d", s.Database, s.DatabaseOID),
		kind: p.names.number("t"+s.Type, s.Type),
	}
	if s.Application != "" {
		name := bounded(s.Application)
		r.app = p.names.number("a"+name, name)
	}
	if s.Phrase != "" {
		r.phrase = p.names.number("p"+s.Phrase, s.Phrase)
	}
	if key, name := p.query(s); key != "" {
		r.query = p.names.number("q"+key, name)
	}
	return r
}

// oid returns the number of an object with an OID, such as a user. A sample may have the OID without the name, and recorded
// minutes have only the name. All forms get the same number as soon as one sample has both.
func (p *past) oid(prefix, name string, oid uint32) uint32 {
	switch {
	case oid == 0 && name == "":
		return 0
	case oid == 0:
		return p.names.number(prefix+name, name)
	}
	text := "oid " + strconv.FormatUint(uint64(oid), 10)
	if name == "" {
		i, known := p.names.index[prefix+text]
		if !known {
			i = p.names.number(prefix+text, text)
			p.names.own(i, prefix, oid)
		}
		return i
	}
	i, known := p.names.index[prefix+text]
	if !known {
		// Another oid may have had the name before: it was renamed or dropped.
		if j, ok := p.names.index[prefix+name]; ok && p.names.list[j].oid != 0 {
			delete(p.names.index, prefix+name)
		}
		i = p.names.number(prefix+name, name)
		p.names.own(i, prefix, oid)
		return i
	}
	if e := &p.names.list[i]; e.name != bounded(name) {
		if e.key != prefix+text {
			e.key = prefix + name
		}
		e.name = bounded(name)
		p.names.index[prefix+name] = i
	}
	return i
}

// own notes that an entry belongs to an oid.
func (n *names) own(i uint32, prefix string, oid uint32) {
	n.list[i].oid = oid
	n.index[prefix+"oid "+strconv.FormatUint(uint64(oid), 10)] = i
}

// query returns a key that identifies the statement but has no part of its text, and the statement without its values. Both are
// empty without a statement.
func (p *past) query(s *moment.Session) (key, name string) {
	if s.Query != "" {
		text, ok := p.normalized[s.Query]
		if !ok {
			text = bounded(store.Normalized(s.Query))
			if len(p.normalized) >= maxTexts || p.normalized == nil {
				p.normalized = map[string]string{}
			}
			p.normalized[s.Query] = text
		}
		name = text
	}
	if s.QueryID != 0 {
		key = strconv.FormatInt(s.QueryID, 10)
		return key, cmp.Or(name, "query id "+key)
	}
	if name == "" {
		return "", ""
	}
	return fmt.Sprintf(textKey+"%016x", maphash.String(textSeed, name)), name
}

// textKey begins the key of a statement without a query id.
const textKey = "text-"

// textSeed makes the keys of texts different in each process of this program. So a reader without the right to see texts cannot
// guess a statement, compute its key, and compare the keys.
//
//nolint:gochecknoglobals // of the process
var textSeed = maphash.MakeSeed()

func micro(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMicro()
}

// dropAfter removes the samples at the time t or later.
func (p *past) dropAfter(t time.Time) {
	for n := len(p.samples); n > 0 && !p.samples[n-1].at.Before(t); n-- {
		p.uncount(p.samples[n-1:])
		p.samples = p.samples[:n-1]
	}
}

// uncount subtracts the rows of the removed samples in list from p.rows and p.minuteRows, and removes the hours of these samples
// from p.hours.
func (p *past) uncount(list []sample) {
	for i := range list {
		p.rows -= len(list[i].rows)
		if list[i].kind == KindMinute {
			p.minuteRows -= len(list[i].rows)
			delete(p.hours, list[i].at.Add(-1).Truncate(time.Hour).Unix()) // the end of an hour is the time of its last minute
		}
	}
}

// bound keeps p within its bounds: it makes minutes of the oldest single samples, then removes the oldest samples, their stacks,
// and the names that no other sample has.
func (p *past) bound() {
	most := cmp.Or(p.most, maxRows)
	for p.rows-p.minuteRows > most || len(p.samples)-p.minutes() > maxSamples {
		if !p.sumMinute() {
			break
		}
	}
	drop, rows := max(0, len(p.samples)-maxSamples-maxMinutes), p.rows
	minuteRows := p.minuteRows
	for i := range p.samples {
		if i >= drop && rows-minuteRows <= most && minuteRows <= most {
			break
		}
		rows -= len(p.samples[i].rows)
		if p.samples[i].kind == KindMinute {
			minuteRows -= len(p.samples[i].rows)
		}
		drop = max(drop, i+1)
	}
	full := len(p.names.list) > maxNames || p.names.bytes > maxBytes
	if full { // perhaps most names occur only in old samples
		drop = max(drop, len(p.samples)/2)
	}
	drop = min(drop, len(p.samples)-1)
	if drop > 0 {
		p.first = reasonDropped
		p.uncount(p.samples[:drop])
		if drop > len(p.samples)/8 || full { // release the memory
			p.samples = slices.Clone(p.samples[drop:])
		} else {
			p.samples = p.samples[drop:]
		}
	}
	if k := &p.stacks; len(k.sets) > 0 && k.sets[0].at.Before(p.samples[0].at.Add(-time.Minute)) {
		old, _ := slices.BinarySearchFunc(k.sets, p.samples[0].at, func(x stackSet, t time.Time) int { return x.at.Compare(t) })
		k.keep(old)
	}
	if full {
		p.renumber()
	}
}

// renumber keeps only the names that samples or stacks have, with new numbers.
func (p *past) renumber() {
	old := p.names
	p.names, p.known = names{}, nil
	again := make(map[uint32]uint32)
	number := func(i *uint32) {
		if *i == 0 {
			return
		}
		to, ok := again[*i]
		if !ok {
			e := old.get(*i)
			to = p.names.number(e.key, e.name)
			if e.oid != 0 {
				p.names.own(to, e.key[:1], e.oid)
			}
			again[*i] = to
		}
		*i = to
	}
	properties := func(r *row) {
		for _, n := range []*uint32{&r.event, &r.query, &r.user, &r.database, &r.app, &r.phrase, &r.kind} {
			number(n)
		}
	}
	for i := range p.stacks.sets {
		for j := range p.stacks.sets[i].rows {
			properties(&p.stacks.sets[i].rows[j].row)
		}
	}
	for i := range p.samples {
		s := &p.samples[i]
		for j := range s.rows {
			properties(&s.rows[j])
		}
		for j := range s.found {
			number(&s.found[j].key)
		}
	}
}

// between calls the callback each for every sample that stands for a part of a span, with the length of this part in seconds.
func (p *past) between(s Span, each func(*sample, float64)) {
	first, _ := slices.BinarySearchFunc(p.samples, s.From, func(x sample, t time.Time) int { return x.at.Compare(t) })
	for i := first; i < len(p.samples); i++ {
		x := &p.samples[i]
		begin := x.at.Add(-x.period)
		if !begin.Before(s.To) {
			break
		}
		if part := earlier(x.at, s.To).Sub(later(begin, s.From)).Seconds(); part > 0 {
			each(x, part)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// matcher is a Filter with the numbers of names instead of their keys.
type matcher struct {
	conditions []condition
	never      bool // no row passes, as no sample has the key of a condition
}

type condition struct {
	by     By
	number uint32
	pid    int32
	start  int64
	class  int8
}

func (p *past) matcher(f Filter) (m matcher) {
	for _, c := range f {
		x := condition{by: c.By}
		switch c.By {
		case BySession:
			pid, start, _ := strings.Cut(c.Key, "-")
			n, err := strconv.ParseInt(pid, 10, 32)
			x.pid = int32(n)
			x.start, _ = strconv.ParseInt(start, 10, 64)
			m.never = m.never || err != nil
		case ByClass:
			x.class = int8(slices.Index(Classes(), c.Key))
			m.never = m.never || x.class < 0
		default:
			if prefix := prefixOf(c.By); c.Key != "" {
				n, ok := p.names.find(prefix, c.Key)
				x.number, m.never = n, m.never || !ok || prefix == ""
			}
		}
		m.conditions = append(m.conditions, x)
	}
	return m
}

func prefixOf(by By) string {
	return map[By]string{
		ByQuery: "q", ByEvent: "e", ByUser: "u", ByDatabase: "d", ByApplication: "a", ByPhrase: "p", ByType: "t",
	}[by]
}

// value returns the number of a property of a row.
func (r *row) value(by By) uint32 {
	switch by {
	case ByQuery:
		return r.query
	case ByEvent:
		return r.event
	case ByUser:
		return r.user
	case ByDatabase:
		return r.database
	case ByApplication:
		return r.app
	case ByPhrase:
		return r.phrase
	case ByType:
		return r.kind
	case BySession, ByClass:
	}
	return 0
}

// match reports whether a row is of an active session and meets all conditions.
func (m *matcher) match(r *row) bool {
	if m.never || r.class == idleClass {
		return false
	}
	for i := range m.conditions {
		c := &m.conditions[i]
		switch c.by {
		case BySession:
			if r.pid != c.pid || c.start != 0 && r.started != c.start {
				return false
			}
		case ByClass:
			if r.class != c.class {
				return false
			}
		default:
			if r.value(c.by) != c.number {
				return false
			}
		}
	}
	return true
}

// count returns the numbers of active sessions that pass, by wait class.
func (m *matcher) count(s *sample) [numClasses]float64 {
	if len(m.conditions) == 0 {
		return s.sums
	}
	var sums [numClasses]float64
	for i := range s.rows {
		if r := &s.rows[i]; m.match(r) {
			sums[r.class] += float64(r.weight)
		}
	}
	return sums
}

// load is Source.Load. after is the reason of a gap at the end.
func (p *past) load(q Query, columns int, interval time.Duration, after string) *Load {
	columns = min(max(1, columns), maxSamples)
	length := niceLength(q.To.Sub(q.From)/time.Duration(columns), interval)
	from := q.From.Truncate(length)
	l := &Load{Span: q.Span, ColumnSeconds: length.Seconds(), Classes: []string{}, Active: []float64{}}
	n := int((q.To.Sub(from) + length - 1) / length)
	n = min(max(n, 1), 2*maxSamples)
	sums := make([][numClasses]float64, n)
	seconds, total, all := make([]float64, n), [numClasses]float64{}, 0.0
	l.Columns = make([]Column, n)
	for i := range l.Columns {
		l.Columns[i].Time = from.Add(time.Duration(i) * length)
	}
	m := p.matcher(q.Filter)
	p.between(Span{from, q.To}, func(s *sample, _ float64) {
		counts := m.count(s)
		begin := s.at.Add(-s.period)
		first := max(0, int(begin.Sub(from)/length))
		for i := first; i < n && l.Columns[i].Time.Before(s.at); i++ {
			part := earlier(s.at, l.Columns[i].Time.Add(length)).Sub(later(begin, l.Columns[i].Time)).Seconds()
			if part <= 0 {
				continue
			}
			seconds[i] += part
			all += part
			if l.Columns[i].Kind != KindSampled {
				l.Columns[i].Kind = s.kind
			}
			for c, k := range counts {
				sums[i][c] += k * part
				total[c] += k * part
			}
		}
	})
	l.Seconds = all
	l.Gaps = p.gaps(q.Span, interval, after)
	var present []int
	for c, name := range Classes() {
		if total[c] > 0 {
			present = append(present, c)
			l.Classes = append(l.Classes, name)
			l.Active = append(l.Active, total[c]/all)
		}
	}
	for i := range l.Columns {
		if seconds[i] == 0 {
			continue
		}
		l.Columns[i].Active = make([]float64, len(present))
		for j, c := range present {
			l.Columns[i].Active[j] = sums[i][c] / seconds[i]
		}
	}
	return l
}

// gaps returns the parts of a span for which no sample stands. after is the reason of a gap at the end.
func (p *past) gaps(q Span, interval time.Duration, after string) (list []Gap) {
	at := q.From
	add := func(to time.Time, reason string) {
		if to = earlier(to, q.To); to.Sub(at) <= 2*interval {
			return
		}
		n := len(list)
		switch {
		case n > 0 && list[n-1].Reason == reason && at.Sub(list[n-1].To) <= interval:
			list[n-1].To = to
		case n >= maxGaps:
			list[n-1].To, list[n-1].Reason = to, "several reasons"
		default:
			list = append(list, Gap{Span{at, to}, reason})
		}
	}
	first, _ := slices.BinarySearchFunc(p.samples, q.From, func(x sample, t time.Time) int { return x.at.Compare(t) })
	for i := first; i < len(p.samples); i++ {
		s := &p.samples[i]
		reason := cmp.Or(s.before, p.gap, reasonNotSampled)
		if i == 0 {
			reason = cmp.Or(p.first, reason)
		}
		add(s.at.Add(-s.period), reason)
		if at = later(at, s.at); !at.Before(q.To) {
			return list
		}
	}
	add(q.To, after)
	return list
}

// niceLength returns a round length for the columns of a chart, which is not shorter than the durations wanted and interval.
func niceLength(wanted, interval time.Duration) time.Duration {
	wanted = max(wanted, interval)
	for _, s := range []int{1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200} {
		if d := time.Duration(s) * time.Second; d >= wanted {
			return d
		}
	}
	return wanted.Round(time.Hour) + time.Hour
}

// shares is the method `Who` of Source.
func (p *past) shares(q Query, by By, limit int) *Who {
	type sum struct {
		classes [numClasses]float64
		all     float64
		row     *row
	}
	type key struct {
		number uint32
		pid    int32
		start  int64
	}
	w := &Who{Span: q.Span, By: by, Rows: []WhoRow{}}
	m := p.matcher(q.Filter)
	sums, all := map[key]*sum{}, 0.0
	byNumber := make([]*sum, len(p.names.list)+1) // the sums of other properties than sessions; quicker than a map
	p.between(q.Span, func(s *sample, part float64) {
		w.Seconds += part
		for i := range s.rows {
			r := &s.rows[i]
			if !m.match(r) {
				continue
			}
			var x *sum
			if by == BySession {
				k := key{pid: r.pid, start: r.started}
				if x = sums[k]; x == nil {
					x = &sum{}
					sums[k] = x
				}
			} else {
				number := r.value(by)
				if by == ByClass {
					number = uint32(r.class)
				}
				for int(number) >= len(byNumber) {
					byNumber = append(byNumber, nil) //nolint:makezero // grows from its first length
				}
				if x = byNumber[number]; x == nil {
					x = &sum{}
					byNumber[number], sums[key{number: number}] = x, x
				}
			}
			weighted := part * float64(r.weight)
			x.classes[r.class] += weighted
			x.all += weighted
			x.row = r
			all += weighted
		}
	})
	if w.Seconds == 0 {
		return w
	}
	w.Active = all / w.Seconds
	fill := func(to *WhoRow, x *sum) {
		to.Active += x.all / w.Seconds
		to.Share += 100 * x.all / all
		if to.ByClass == nil {
			to.ByClass = map[string]float64{}
		}
		for c, name := range Classes() {
			if x.classes[c] > 0 {
				to.ByClass[name] += x.classes[c] / w.Seconds
			}
		}
	}
	for k, x := range sums {
		r := WhoRow{}
		r.Key, r.Name = p.nameOf(by, k.number, x.row)
		fill(&r, x)
		w.Rows = append(w.Rows, r)
	}
	sort.Slice(w.Rows, func(i, j int) bool {
		a, b := w.Rows[i], w.Rows[j]
		return cmp.Or(cmp.Compare(b.Active, a.Active), cmp.Compare(a.Key, b.Key)) < 0
	})
	if limit > 0 && len(w.Rows) > limit {
		o := WhoRow{Count: len(w.Rows) - limit, ByClass: map[string]float64{}}
		for i := range w.Rows[limit:] {
			r := &w.Rows[limit+i]
			o.Active, o.Share = o.Active+r.Active, o.Share+r.Share
			for c, v := range r.ByClass {
				o.ByClass[c] += v
			}
		}
		w.Others, w.Rows = &o, w.Rows[:limit]
	}
	return w
}

// nameOf returns the key and the name of a value of the property by. r is a row with this value.
func (p *past) nameOf(by By, number uint32, r *row) (key, name string) {
	switch by {
	case BySession:
		if r.pid == 0 { // the row of a minute
			return "0-0", "(means over minutes, without process ids)"
		}
		name = strconv.Itoa(int(r.pid))
		if text := cmp.Or(p.names.get(r.app).name, p.names.get(r.kind).name); text != "" {
			name += " " + text
		}
		return fmt.Sprintf("%d-%d", r.pid, r.started), name
	case ByClass:
		name = Classes()[number]
		return name, name
	default:
	}
	e := p.names.get(number)
	if e.key == "" {
		return "", absent(by)
	}
	return e.key[1:], e.name
}

// absent returns the name that is shown for sessions without the property.
func absent(by By) string {
	switch by {
	case ByQuery:
		return "(no statement)"
	case ByPhrase:
		return "(no phrase)"
	case ByApplication:
		return "(no application name)"
	case ByUser, ByDatabase:
		return "(no " + string(by) + ")"
	case ByEvent, BySession, ByType, ByClass:
	}
	return "(unknown)"
}

// waits returns the waits and other states of a process in a span, the oldest first.
func (p *past) waits(pid int, q Span) []WaitSpan {
	list := []WaitSpan{}
	p.between(q, func(s *sample, _ float64) {
		for i := range s.rows {
			r := &s.rows[i]
			if int(r.pid) != pid {
				continue
			}
			w := WaitSpan{
				Span:  Span{later(s.at.Add(-s.period), q.From), s.at},
				Event: p.names.get(r.event).name, Query: p.names.get(r.query).name,
			}
			if r.class != idleClass {
				w.Class = Classes()[r.class]
			} else {
				w.Event = idleInTx
			}
			if n := len(list); n > 0 && list[n-1].Class == w.Class && list[n-1].Event == w.Event && list[n-1].Query == w.Query &&
				!w.From.After(list[n-1].To.Add(time.Millisecond)) {
				list[n-1].To = w.To
			} else {
				list = append(list, w)
			}
			break
		}
	})
	if len(list) > maxSpans {
		list = list[len(list)-maxSpans:]
	}
	return list
}

// share returns the part of a finding in the database time of a span, in percent; false: there is no database time. If the
// finding has a filter, the part is of the sessions that pass the filter. Otherwise it is of the sessions that the finding
// concerned in each sample.
func (p *past) share(f *Finding, q Span) (float64, bool) {
	number, known := p.names.index["f"+f.Key]
	m := p.matcher(f.Filter)
	part, all := 0.0, 0.0
	p.between(q, func(s *sample, seconds float64) {
		for _, n := range s.sums {
			all += n * seconds
		}
		if len(f.Filter) > 0 {
			for _, n := range m.count(s) {
				part += n * seconds
			}
			return
		}
		for i := range s.found {
			if known && s.found[i].key == number {
				part += float64(s.found[i].active) * seconds
			}
		}
	})
	if all == 0 {
		return 0, false
	}
	return min(100, 100*part/all), true
}
