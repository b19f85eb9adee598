package metrics

import "sync"

// stateNamesSeen holds the SQLSTATEs that have a series of their own, maxStates-1 at most.
type stateNamesSeen struct {
	mu   sync.Mutex
	seen admitted[string]
}

// name returns the value of the label sqlstate: state or, beyond the limit, other.
func (s *stateNamesSeen) name(state string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.most = maxStates - 1
	if s.seen.admit(state) {
		return state
	}
	return other
}
