package moment

import (
	"slices"
	"strings"
)

// Judged is the phrase of a recorded stack.
type Judged struct {
	Text string
	// Idle is set for a process that waits for work, and Specific for a phrase that is not generic.
	Idle, Specific bool
	// Contradictions are statements of the text that contradict the stack or the wait. They are found by rules that the
	// matcher does not use.
	Contradictions []string
}

// Judge matches a recorded stack, outermost first, separated by ";".
func Judge(major int, backend, waitType, waitEvent, stack string) Judged {
	s := &sample{major: major, situation: "fresh", backend: backend, waitType: waitType, waitEvent: waitEvent}
	s.functions = strings.Split(stack, ";")
	slices.Reverse(s.functions)
	p := MatchPhrase(s.input())
	j := Judged{Text: p.Text, Specific: p.Key != "" && !p.Generic}
	j.Idle = waitType == "Activity" || waitType == "Client" && waitEvent == "ClientRead"
	if j.Specific {
		j.Contradictions = contradictions(s, p.Text)
	}
	return j
}
