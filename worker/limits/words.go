package limits

import "fmt"

// SQLState is configuration_limit_exceeded, the SQLSTATE of all refusals because of a limit.
const SQLState = "53400"

// Exceeded is a refusal because of a limit, with the text for the SQL user.
type Exceeded struct {
	Message string
	Detail  string // may be empty
	Hint    string
}

// Error returns message and detail.
func (e *Exceeded) Error() string {
	if e.Detail == "" {
		return e.Message
	}
	return e.Message + ": " + e.Detail
}

// tryLater is the hint of a refusal for which the user can only wait.
const tryLater = "Try again later."

// ErrBusy refuses a request for which the worker had no room in time.
var ErrBusy = &Exceeded{Message: "too many requests are waiting for the pg_stat_backtrace worker", Hint: tryLater}

// tooOften returns the refusal of a request for this number of processes.
func tooOften(r Rate, processes int) *Exceeded {
	e := &Exceeded{
		Message: "too many backtrace requests",
		Detail: fmt.Sprintf("A role that is not a superuser may make %g requests per second, and %d at once.",
			r.PerSecond, r.Burst),
		Hint: tryLater,
	}
	if processes > 1 {
		e.Hint = "Try again later, or ask for fewer processes: each of them counts as a request."
	}
	return e
}
