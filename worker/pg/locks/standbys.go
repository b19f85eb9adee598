package locks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/report/units"
)

// Standbys describes in words the synchronous standbys for which commits wait: "0 of 1 required synchronous standbys are
// connected". The text has no names of standbys. It is empty if no commit waits, or if nothing is known.
func Standbys(waits map[int]*Wait) string {
	behind, reason := map[int]uint64{}, ""
	for _, w := range waits {
		if w.Kind != SyncRep || w.Changed {
			continue
		}
		if len(w.Blockers) == 0 {
			reason = w.Reason
		}
		for i := range w.Blockers {
			b := &w.Blockers[i]
			behind[b.PID] = max(behind[b.PID], b.Behind)
		}
	}
	if len(behind) == 0 {
		return strings.TrimPrefix(reason, "unknown: ")
	}
	const most = 3
	senders := slices.SortedFunc(maps.Keys(behind), func(a, b int) int { return cmp.Or(cmp.Compare(behind[b], behind[a]), a-b) })
	var parts []string
	for _, pid := range senders[:min(most, len(senders))] {
		parts = append(parts, fmt.Sprintf("the standby of WAL sender %d is connected and has not confirmed the last %s of WAL",
			pid, units.Size(behind[pid])))
	}
	return strings.Join(parts, ", ")
}
