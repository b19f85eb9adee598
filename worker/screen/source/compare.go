package source

import (
	"cmp"
	"math"
	"slices"
)

// Comparison is a table of active sessions by a property in two spans: the embedded Span, and Before.
type Comparison struct {
	Span

	Before Span     `json:"before"`
	By     By       `json:"by"`
	Rows   []Change `json:"rows"` // the largest change first
	// More is the number of rows beyond the limit.
	More int `json:"more,omitempty"`
	// Active and ActiveBefore are the mean active sessions that pass the filter.
	Active       float64 `json:"active_sessions"`
	ActiveBefore float64 `json:"active_sessions_before"`
	// Seconds and SecondsBefore are the parts of the two spans with data.
	Seconds       float64 `json:"sampled_seconds"`
	SecondsBefore float64 `json:"sampled_seconds_before"`
}

// Change has the active sessions of one value of a property in both spans of a Comparison. The figures are mean active
// sessions.
type Change struct {
	Key    string  `json:"key"`
	Name   string  `json:"name"`
	Active float64 `json:"active_sessions"`
	Before float64 `json:"active_sessions_before"`
	Change float64 `json:"active_sessions_change"`
}

// Compare compares the answers for two spans, which are for the same property and have all rows (no Others). The result has
// at most limit rows; 0: all rows.
func Compare(now, before *Who, limit int) *Comparison {
	c := &Comparison{
		Span: now.Span, Before: before.Span, By: now.By, Rows: []Change{}, Active: now.Active, ActiveBefore: before.Active,
		Seconds: now.Seconds, SecondsBefore: before.Seconds,
	}
	at := make(map[string]int, len(now.Rows))
	for i := range now.Rows {
		r := &now.Rows[i]
		at[r.Key] = len(c.Rows)
		c.Rows = append(c.Rows, Change{Key: r.Key, Name: r.Name, Active: r.Active, Change: r.Active})
	}
	for i := range before.Rows {
		r := &before.Rows[i]
		k, ok := at[r.Key]
		if !ok {
			k = len(c.Rows)
			c.Rows = append(c.Rows, Change{Key: r.Key, Name: r.Name})
		}
		c.Rows[k].Before, c.Rows[k].Change = r.Active, c.Rows[k].Active-r.Active
	}
	slices.SortFunc(c.Rows, func(a, b Change) int {
		return cmp.Or(cmp.Compare(math.Abs(b.Change), math.Abs(a.Change)), cmp.Compare(b.Active, a.Active), cmp.Compare(a.Key, b.Key))
	})
	if limit > 0 && len(c.Rows) > limit {
		c.More = len(c.Rows) - limit
		c.Rows = c.Rows[:limit]
	}
	return c
}
