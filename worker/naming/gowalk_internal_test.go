package naming

import (
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestThreadOfOtherNamespace: the id of a thread that is not in the snapshot is shown only if it is an id in this PID namespace.
func TestThreadOfOtherNamespace(t *testing.T) {
	host := arch.Host()
	if host == nil {
		t.Skip("no unwinder for this architecture")
	}
	for nested, want := range map[bool]int{true: 0, false: 4711} {
		w := GoWalk{Arch: host, Space: &Space{}, Nested: nested}
		out := backtrace.Goroutine{Thread: backtrace.Thread{TID: 4711}}
		if w.stack(&out, &golang.Goroutine{Status: golang.Running}, &memory{}) || out.TID != want {
			t.Errorf("nested %t: thread %d, want %d", nested, out.TID, want)
		}
	}
}
