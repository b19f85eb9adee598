package capture

import (
	"slices"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/levels"
)

// TestSpansOfCutTrace checks that frames which the limit has cut from a trace get no levels. Without that, their
// levels would appear at the last frame of the trace.
func TestSpansOfCutTrace(t *testing.T) {
	t.Parallel()
	const low = 0x1000
	walked := make([]unwind.Frame, 5)
	for i := range walked {
		walked[i].CFA = low + 0x100*uint64(i+1)
	}
	span := func(i, index int, module string) levels.Frame {
		return levels.Frame{Index: index, Start: low + 0x100*uint64(i), End: low + 0x100*uint64(i+1), Module: module}
	}
	whole := []backtrace.Frame{
		{Module: "a"}, {Module: "b", Inlined: true}, {Module: "b"}, {Module: "c"}, {Module: "d", Inlined: true},
		{Module: "d"}, {Module: "e"},
	}
	for _, tt := range []struct {
		lines int
		want  []levels.Frame
	}{
		{7, []levels.Frame{
			span(0, 0, "a"), span(1, 2, "b"), span(2, 3, "c"), span(3, 5, "d"), span(4, 6, "e"),
		}},
		{5, []levels.Frame{span(0, 0, "a"), span(1, 2, "b"), span(2, 3, "c")}},
		{3, []levels.Frame{span(0, 0, "a"), span(1, 2, "b")}},
		{2, []levels.Frame{span(0, 0, "a")}},
	} {
		lines := whole[:tt.lines]
		if got := spans(low, walked, physical(walked, lines), lines); !slices.Equal(got, tt.want) {
			t.Errorf("%d lines: %+v, want %+v", tt.lines, got, tt.want)
		}
	}
}
