package waitevent

import (
	"io"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/report/table"
)

// CSV prints the sums of all processes, a row for each event. A figure that the method does not measure is empty.
func (r *Report) CSV(w io.Writer) error {
	out := table.CSV(w)
	out.Row("since", "seconds", "method", "wait_event_type", "wait_event", "calls", "total_time_ms", "avg_time_us", "max_time_us")
	since, seconds := r.Since.Format(time.RFC3339Nano), decimal(r.Took.Seconds())
	for _, e := range r.events(r.Rows) {
		calls := ""
		if e.Calls != nil {
			calls = strconv.FormatUint(*e.Calls, 10)
		}
		total := strconv.FormatFloat(e.Total, 'f', -1, 64)
		out.Row(since, seconds, string(r.Info.Method), e.Type, e.Event, calls, total, known(e.Average), known(e.Longest))
	}
	return out.Flush()
}

// decimal returns a number with three decimals, such as microseconds with the precision of nanoseconds.
func decimal(x float64) string {
	const digits = 3
	return strconv.FormatFloat(x, 'f', digits, 64)
}

// known returns a number as text; empty for nil.
func known(x *float64) string {
	if x == nil {
		return ""
	}
	return decimal(*x)
}
