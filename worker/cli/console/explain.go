package console

import (
	"errors"
	"fmt"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/report/render"
)

// Explain turns the error of a capture of process pid into sentences: what
// failed, why, and what the user can do.
func Explain(pid int, err error) string {
	switch {
	case errors.Is(err, naming.ErrNotGo):
		return fmt.Sprintf("process with PID %d has no goroutines: it runs no Go program or library", pid)
	case errors.Is(err, golang.ErrRuntimeVersion), errors.Is(err, golang.ErrNotFound):
		return fmt.Sprintf("the goroutines of process with PID %d were not found: %v\n"+
			"  Without --goroutines, its threads are captured.", pid, err)
	}
	if IsGone(err) {
		return fmt.Sprintf("process %d has ended", pid)
	}
	var denied *process.PermissionError
	if errors.As(err, &denied) && denied.Reason == process.ReasonUID { // the hint of FaultOf is about the worker
		return DeniedProcess(pid)
	}
	f := render.FaultOf(pid, err)
	s := f.Message
	if f.Detail != "" {
		s += "\n  " + f.Detail
	}
	if f.Hint != "" {
		s += "\n  " + f.Hint
	}
	return s
}
