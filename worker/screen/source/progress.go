package source

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/report/units"
)

// Progress is the progress that a utility command, such as VACUUM, reports in a view pg_stat_progress_*.
type Progress struct {
	// Time is the time of the sample.
	Time time.Time `json:"time"`
	// Text says what the command does, such as "VACUUM on orders: scanning heap, 0 of 569 blocks".
	Text string `json:"text"`
	// View is the name of the view. Columns are its columns, in the view's order.
	View    string           `json:"view"`
	Columns []ProgressColumn `json:"columns"`
}

// ProgressColumn is a column of a view and its value.
type ProgressColumn struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// progress returns the progress that a process reports in the newest sample; nil: it reports none, or a sample does not end.
func (l *Live) progress(ctx context.Context, pid int) *Progress {
	ctx, cancel := context.WithTimeout(ctx, reachWait)
	defer cancel()
	if l.reading.enter(ctx) != nil {
		return nil
	}
	defer l.reading.leave()
	var s *moment.Session
	at, version := time.Time{}, 0
	l.mu.Lock()
	if l.last != nil {
		at, version = l.last.Time, cmp.Or(l.last.Version, l.info.Version)
		if i := slices.IndexFunc(l.last.Sessions, func(x moment.Session) bool { return x.ServerPID == pid }); i >= 0 {
			s = new(l.last.Sessions[i])
		}
	}
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	if l.recorded.Load() != nil && l.following.runs(time.Now()) { // the sweeps have no progress; see addOwnLook
		at = l.following.looked
	}
	r := plan.DescribeCommand(version, s.Progress)
	if r == nil {
		return nil
	}
	if r.TargetOID != 0 && l.reader != nil {
		r.Target = l.reader.RelationName(s.DatabaseOID, r.TargetOID)
	}
	return progressOf(r, at)
}

// progressOf returns the report of a command at a time.
func progressOf(r *plan.CommandReport, at time.Time) *Progress {
	p := &Progress{Time: at, View: "pg_stat_progress_" + r.View, Text: r.Command, Columns: []ProgressColumn{}}
	switch {
	case r.Target != "":
		p.Text += " on " + r.Target
	case r.TargetOID != 0:
		p.Text += " on relation " + strconv.FormatUint(uint64(r.TargetOID), 10)
	}
	if phase := r.Phase(); phase != "" {
		p.Text += ": " + phase
	}
	if done := doneOf(r); done != "" {
		p.Text += ", " + done
	}
	for _, c := range r.Columns {
		value := fmt.Sprint(c.Value)
		if _, isTime := c.Value.(float64); isTime {
			value += " ms"
		}
		if c.Name != "command" {
			p.Columns = append(p.Columns, ProgressColumn{c.Name, value})
		}
	}
	return p
}

// doneOf says how much of its phase a command has done, such as "0 of 569 blocks"; empty: the columns do not say.
func doneOf(r *plan.CommandReport) string {
	numbers := map[string]int64{}
	for _, c := range r.Columns {
		if n, ok := c.Value.(int64); ok {
			numbers[c.Name] = n
		}
	}
	const block, blocks = "block", "blocks"
	for _, x := range []struct{ phase, done, total, one, many string }{
		{"vacuuming heap", "heap_blks_vacuumed", "heap_blks_total", block, blocks},
		{"vacuuming indexes", "indexes_processed", "indexes_total", "index", "indexes"},
		{"cleaning up indexes", "indexes_processed", "indexes_total", "index", "indexes"},
		{"scanning heap", "heap_blks_scanned", "heap_blks_total", block, blocks},
		{"seq scanning heap", "heap_blks_scanned", "heap_blks_total", block, blocks},
		{"acquiring sample rows", "sample_blks_scanned", "sample_blks_total", "sampled block", "sampled blocks"},
		{"", "blocks_done", "blocks_total", block, blocks},
		{"", "tuples_done", "tuples_total", "row", "rows"},
		{"streaming database files", "backup_streamed", "backup_total", "", ""},
		{"", "bytes_processed", "bytes_total", "", ""},
	} {
		done, total := numbers[x.done], numbers[x.total]
		switch {
		case total <= 0 || done < 0 || x.phase != "" && x.phase != r.Phase():
		case x.one == "":
			return units.Size(done) + " of " + units.Size(total)
		case total == 1:
			return fmt.Sprintf("%d of 1 %s", done, x.one)
		default:
			return fmt.Sprintf("%d of %d %s", done, total, x.many)
		}
	}
	return ""
}
