package cli

import "pg_stat_backtrace/worker/fault"

// explain turns the error of a capture of process pid into sentences: what,
// why, and what to do about it.
func explain(pid int, err error) string {
	f := fault.Of(pid, err)
	s := f.Message
	if f.Detail != "" {
		s += "\n  " + f.Detail
	}
	if f.Hint != "" {
		s += "\n  " + f.Hint
	}
	return s
}
