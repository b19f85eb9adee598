package node

import (
	"cmp"
	"maps"
	"slices"
)

// Running returns the processes of this host that may be postmasters, by data directory. The caller must verify them.
// Denied counts the servers that this user may not examine.
func Running() (candidates []Process, denied int, err error) {
	s := newScanner(Config{Proc: "/proc"})
	if err := s.lookAtAll(); err != nil {
		return nil, 0, err
	}
	candidates = slices.SortedFunc(maps.Values(s.found), func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.DataDir, b.DataDir), a.PID-b.PID)
	})
	return candidates, len(s.denied), nil
}
