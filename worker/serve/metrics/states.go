package metrics

import "sync"

// stateNamesSeen bounds the SQLSTATEs that have a series.
type stateNamesSeen struct {
	mu   sync.Mutex
	seen admitted[string]
}

// name returns the value of the label for a SQLSTATE.
func (s *stateNamesSeen) name(state string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.most = maxStates - 1
	if s.seen.admit(state) {
		return state
	}
	return other
}
