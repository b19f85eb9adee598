package store

import (
	"cmp"
	"slices"
	"time"
)

// sumKey has the columns of a Sum that are equal for all of its samples.
type sumKey struct {
	from                                     int64
	waitType, waitEvent, kind, db, user, app string
	query                                    int64
}

type sumValue struct {
	samples int64
	weight  float64
	stacks  map[int64]int64
}

// An adder adds up samples to Sums: one Sum for each span and sumKey.
type adder struct {
	seconds int32
	from    int64 // begin of the span in which the last added sample is
	m       map[sumKey]*sumValue
}

func newAdder(seconds int32) *adder { return &adder{seconds: seconds, m: map[sumKey]*sumValue{}} }

// spanOf returns the begin of the span that contains the time at. Spans are this many seconds long.
func spanOf(at int64, seconds int32) int64 {
	span := int64(seconds) * 1e6
	return at - ((at%span)+span)%span
}

func (a *adder) add(r *Row, period time.Duration) {
	if r.Ended {
		return
	}
	a.from = spanOf(r.Time, a.seconds)
	k := sumKey{a.from, r.WaitType, r.WaitEvent, r.Type, r.Database, r.User, r.App, r.QueryID}
	v := a.m[k]
	if v == nil && len(a.m) >= sumKeys {
		k.app, k.query = "", 0
		v = a.m[k]
	}
	if v == nil {
		v = &sumValue{stacks: map[int64]int64{}}
		a.m[k] = v
	}
	v.samples++
	v.weight += period.Seconds()
	if r.Stack != 0 && (len(v.stacks) < 1000 || v.stacks[r.Stack] > 0) {
		v.stacks[r.Stack]++
	}
}

func (a *adder) sums(texts map[int64]string) []Sum {
	list := make([]Sum, 0, len(a.m))
	for k, v := range a.m {
		s := Sum{Time: k.from, Seconds: a.seconds, WaitType: k.waitType, WaitEvent: k.waitEvent, QueryID: k.query,
			Type: k.kind, Database: k.db, User: k.user, App: k.app, Samples: v.samples, Weight: v.weight, Query: texts[k.query]}
		for id, n := range v.stacks {
			if n > s.TopCount || n == s.TopCount && id < s.TopStack {
				s.TopStack, s.TopCount = id, n
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(x, y Sum) int {
		return cmp.Or(cmp.Compare(x.Time, y.Time), cmp.Compare(y.Samples, x.Samples), cmp.Compare(x.WaitEvent, y.WaitEvent),
			cmp.Compare(x.QueryID, y.QueryID), cmp.Compare(x.App, y.App), cmp.Compare(x.User, y.User),
			cmp.Compare(x.Database, y.Database), cmp.Compare(x.Type, y.Type))
	})
	return list
}
