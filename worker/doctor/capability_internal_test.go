package doctor

import "testing"

// TestNeeds compares which features a capability gives, by the settings of the kernel.
func TestNeeds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scope, paranoid int
		own, foreign    bool // never possible: processes of the own user, and of others
		needed          [2]bool
	}{
		{0, 2, false, false, [2]bool{false, false}},
		{1, 2, false, false, [2]bool{true, false}},
		{2, 3, false, false, [2]bool{true, true}},
		{3, 2, true, true, [2]bool{true, false}},
	} {
		list := needs(c.scope, c.paranoid)
		if list[0].never != c.own || list[2].never != c.foreign || list[1].never ||
			len(list[0].anyOf) > 0 != c.needed[0] || len(list[1].anyOf) > 0 != c.needed[1] {
			t.Errorf("ptrace_scope %d, perf_event_paranoid %d: %+v", c.scope, c.paranoid, list)
		}
	}
}
