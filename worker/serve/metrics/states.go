package metrics

import "sync"

// stateNamesSeen has the SQLSTATEs that have their own series, at most maxStates-1.
type stateNamesSeen struct {
	mu   sync.Mutex
	seen admitted[string]
}

// name returns the value of the label sqlstate. This is the SQLSTATE itself (the parameter state) or, beyond the limit,
// "other".
func (s *stateNamesSeen) name(state string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.most = maxStates - 1
	if s.seen.admit(state) {
		return state
	}
	return other
}
