package rules

import (
	"math"
	"testing"

	"pg_stat_backtrace/worker/history/store"
)

// TestCauseWords has every kind of cause, and forged keys, which stay as they are.
func TestCauseWords(t *testing.T) {
	t.Parallel()
	const start, xact = 1_767_322_800_000_000, 1_767_323_000_999_999
	v := &view{rows: map[int32]*store.Row{7: {PID: 7, Start: start, XactStart: xact}, 8: {PID: 8, Start: start}}}
	for cause, want := range map[string]string{
		v.identity(7): "process 7, transaction since 2026-01-02 03:03:20 UTC",
		v.identity(8): "process 8, started 2026-01-02 03:00:00 UTC",
		"process 9":   "process 9", causeLWLock("WALWrite"): "LWLock WALWrite", "unknown holder": "unknown holder",
		causeStandby: "synchronous standby", causeDisk: "disk or network file system", causeStarved: "overloaded host",
		causeConnections: "connection slots", "manual": "manual", "": "",
		v.identity(7) + " x":                           v.identity(7) + " x",
		"process 007 of 1, transaction of 2":           "process 007 of 1, transaction of 2",
		"process 1 of 2, transaction of 3\nDROP TABLE": "process 1 of 2, transaction of 3\nDROP TABLE",
		"process 99999999999 of 1, transaction of 2":   "process 99999999999 of 1, transaction of 2",
	} {
		if got := CauseWords(cause); got != want {
			t.Errorf("%q: %q, want %q", cause, got, want)
		}
	}
	far := &view{rows: map[int32]*store.Row{1: {PID: 1, XactStart: math.MaxInt64}}}
	if got := CauseWords(far.identity(1)); got == "" {
		t.Error("no words for a time far away")
	}
}
