package verb

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb for sums of the recorded history; see pg_backtrace_history_summary in sql/.
var _ = register(Verb{
	Name: "history_summary", Processes: Any, gate: (*Service).reading,
	answer: func(s *Service, ctx context.Context, c call) spool.Answer {
		return s.answerRecorded(ctx, c, s.summaryRows)
	},
})

// summaryRows returns the rows of buckets: samples with equal properties, added up for equal lengths of time. The setting
// history has the start and the end of the span, and the length of a bucket, in microseconds.
func (s *Service) summaryRows(ctx context.Context, req spool.Request) ([][]string, error) {
	text := req.Settings["history"]
	times, last, _ := cutLast(text)
	since, until, err := historySpan(times)
	if err != nil {
		return nil, err
	}
	micros, err := strconv.ParseInt(last, 10, 64)
	if err != nil || micros < time.Second.Microseconds() || micros > maxBucket.Microseconds() {
		return nil, invalid("history", text, "Call pg_backtrace_history_summary with buckets of 1 second to 366 days.")
	}
	r, err := s.historyReader()
	if err != nil {
		return nil, err
	}
	b := newBuckets(time.Duration(micros) * time.Microsecond)
	if err := b.read(ctx, r, since, until); err != nil {
		return nil, err
	}
	return b.rows(len(r.Damage), req.Encoding), nil
}

// maxBucket is the longest bucket. The SQL function has the same limit.
const maxBucket = 366 * 24 * time.Hour

// cutLast splits a text at its last space. found is false if it has no space.
func cutLast(text string) (before, after string, found bool) {
	at := strings.LastIndexByte(text, ' ')
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+1:], true
}

// sampleClass has the texts that must be equal for samples to be added up.
type sampleClass struct{ kind, waitType, waitEvent, db, user string }

// bucketKey has all properties that must be equal for samples to be added up. The field from is the start of the bucket, in
// microseconds. The field query is the query id, and the field class is the index of the texts in buckets.classes. Keys
// without texts make the many look-ups cheaper.
type bucketKey struct {
	from, query int64
	class       int
}

type bucketValue struct {
	samples int64
	weight  float64 // sum of the samples' periods, in seconds
	query   string
	stacks  []stackCount // at most maxStacksOfBucket; sums of minutes and hours have only the most frequent stack
}

// stackCount is the number of samples with the stack id.
type stackCount struct{ id, samples int64 }

// buckets adds up samples. The field largest is the maximum number of keys. If there are more, it leaves out the last bucket,
// and all samples from the start of this bucket on. If a single bucket has too many keys, its further samples are added up by
// wait event only.
type buckets struct {
	micros  int64
	m       map[bucketKey]*bucketValue
	classes []sampleClass
	numbers map[sampleClass]int // indexes in classes
	next    int64               // start of the first bucket that is left out; 0: none
	first   int64               // start of the first bucket in m
	last    int64               // start of the last bucket in m
	merged  bool                // some samples were added up by wait event only
	largest int
}

func newBuckets(length time.Duration) *buckets {
	return &buckets{micros: length.Microseconds(), m: map[bucketKey]*bucketValue{},
		numbers: map[sampleClass]int{}, largest: maxHistoryRows - mergedRows}
}

// mergedRows is the number of rows that are reserved for samples that are added up by wait event only.
const mergedRows = 1000

// begin returns the start of the bucket that contains a time. One bucket starts with the year 2000 (a Saturday) in UTC, and
// the other buckets join it without gaps.
func (b *buckets) begin(at int64) int64 {
	const epoch = 946_684_800_000_000
	rest := (at - epoch) % b.micros
	return at - (rest+b.micros)%b.micros
}

// read adds the samples of a span. Buckets of whole minutes are made from the sums of minutes and hours in the files
// (store.Sum), which are cheap to read.
func (b *buckets) read(ctx context.Context, r *store.Reader, since, until time.Time) error {
	const minute, hour = int64(60e6), int64(3600e6)
	if b.micros%minute == 0 {
		o := store.SumOptions{Since: since, Until: until, ByMinute: b.micros%hour != 0, Enough: b.full}
		return r.Sums(ctx, o, func(s *store.Sum) error {
			b.add(b.begin(s.Time), sampleClass{s.Type, s.WaitType, s.WaitEvent, s.Database, s.User}, s.QueryID, bucketValue{
				samples: s.Samples, weight: s.Weight, query: s.Query,
			}, stackCount{s.TopStack, s.TopCount})
			return nil
		})
	}
	_, err := store.ReadSpan(ctx, r, since, until, func(w *store.SpanSweep, _ *store.Gap) error {
		for i := range w.Rows {
			row := &w.Rows[i]
			if row.Ended {
				continue
			}
			b.add(b.begin(row.Time), sampleClass{row.Type, row.WaitType, row.WaitEvent, row.Database, row.User}, row.QueryID, bucketValue{
				samples: 1, weight: w.Period.Seconds(), query: row.Query,
			}, stackCount{row.Stack, 1})
		}
		return nil
	})
	return err
}

// full reports whether the samples from the time from on are left out, for lack of room.
func (b *buckets) full(from time.Time) bool {
	return b.next != 0 && b.begin(from.UnixMicro()) >= b.next
}

// add adds samples of a bucket, which begins at from.
func (b *buckets) add(from int64, class sampleClass, query int64, samples bucketValue, stack stackCount) {
	if b.next != 0 && from >= b.next {
		return
	}
	k := bucketKey{from, query, b.number(class)}
	v := b.m[k]
	if v == nil && len(b.m) >= b.largest {
		b.makeRoom(from)
		if b.next != 0 && from >= b.next {
			return
		}
		if len(b.m) >= b.largest { // all keys are of one bucket
			b.merged = true
			k = bucketKey{from: from, class: b.number(sampleClass{waitType: class.waitType, waitEvent: class.waitEvent})}
			samples.query = ""
			v = b.m[k]
		}
	}
	if v == nil {
		if len(b.m) == 0 {
			b.first, b.last = from, from
		}
		b.first, b.last = min(b.first, from), max(b.last, from)
		v = &bucketValue{}
		b.m[k] = v
	}
	v.samples += samples.samples
	v.weight += samples.weight
	v.query = cmp.Or(v.query, samples.query)
	v.count(stack)
}

// number returns the index of a class in classes, and adds the class if it is new.
func (b *buckets) number(class sampleClass) int {
	n, found := b.numbers[class]
	if !found {
		n = len(b.classes)
		b.numbers[class], b.classes = n, append(b.classes, class)
	}
	return n
}

// count adds the samples of a stack to the value's counts.
func (v *bucketValue) count(s stackCount) {
	if s.id == 0 {
		return
	}
	for i := range v.stacks {
		if v.stacks[i].id == s.id {
			v.stacks[i].samples += s.samples
			return
		}
	}
	if len(v.stacks) < maxStacksOfBucket {
		v.stacks = append(v.stacks, s)
	}
}

// top returns the id of the stack with the most samples; 0: no stack is known.
func (v *bucketValue) top() int64 {
	var top stackCount
	for _, s := range v.stacks {
		if s.samples > top.samples || s.samples == top.samples && s.id < top.id {
			top = s
		}
	}
	return top.id
}

// maxStacksOfBucket bounds the stacks that are counted for each key.
const maxStacksOfBucket = 100

// makeRoom leaves out the last bucket, unless there is only one. coming is the start of the bucket of the next sample.
func (b *buckets) makeRoom(coming int64) {
	last := max(b.last, coming)
	if min(b.first, coming) == last {
		return // skip the loop below, because each further sample of this bucket calls makeRoom again
	}
	b.next, b.last = last, b.first
	for k := range b.m {
		if k.from >= last {
			delete(b.m, k)
		} else {
			b.last = max(b.last, k.from)
		}
	}
}

// rows returns a first row with a notice or "", and then the rows in the order of time. damaged is the number of files
// that could not be read whole. encoding is the encoding of the caller's database.
func (b *buckets) rows(damaged int, encoding string) [][]string {
	type entry struct {
		bucketKey
		*bucketValue
		class sampleClass
	}
	list := make([]entry, 0, len(b.m))
	for k, v := range b.m {
		list = append(list, entry{k, v, b.classes[k.class]})
	}
	slices.SortFunc(list, func(x, y entry) int {
		if x.from != y.from || x.weight != y.weight {
			return cmp.Or(cmp.Compare(x.from, y.from), cmp.Compare(y.weight, x.weight))
		}
		a, b := &x.class, &y.class
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.waitType, b.waitType), cmp.Compare(a.waitEvent, b.waitEvent),
			cmp.Compare(a.db, b.db), cmp.Compare(a.user, b.user), cmp.Compare(x.bucketKey.query, y.bucketKey.query))
	})
	rows, size := [][]string{nil}, 0
	id := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	shortened := false
	for _, e := range list {
		c, v := &e.class, e.bucketValue
		row := []string{
			strconv.FormatInt(e.from, 10), c.kind, c.waitType, c.waitEvent, c.db, c.user, id(e.bucketKey.query), v.query,
			strconv.FormatInt(v.samples, 10), strconv.FormatFloat(v.weight, 'f', 3, 64), id(v.top()),
		}
		n := cellsSize(row, encoding)
		if size+n > limits.MaxRows { // no room: leave out the text of the query
			n -= spool.Size(v.query, encoding)
			row[7], shortened = "", shortened || v.query != ""
		}
		size += n
		rows = append(rows, row)
	}
	var parts []string
	if b.next != 0 {
		parts = append(parts, "there are more rows: continue with "+microText(b.next))
	}
	if b.merged {
		parts = append(parts, "a bucket has too many rows: some samples are counted by wait event only")
	}
	if shortened {
		parts = append(parts, "some texts of queries are left out")
	}
	if damaged > 0 {
		parts = append(parts, units.Count(damaged, "file")+" cannot be read whole")
	}
	rows[0] = []string{strings.Join(parts, "; ")}
	return rows
}

// microText prints microseconds since 1970 as SQL reads it.
func microText(micros int64) string {
	return time.UnixMicro(micros).UTC().Format("2006-01-02 15:04:05.000000+00")
}
