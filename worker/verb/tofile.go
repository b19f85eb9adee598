package verb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb that writes a stack to a file; see pg_get_backtrace_to_file in sql/. The setting history has the path. Besides
// EXECUTE, the caller needs the right to see the stack.
var _ = register(Verb{Name: "to_file", Processes: One, gate: (*Service).answering, answer: (*Service).answerToFile})

// minFreeForText is the space, in bytes, that must stay free in the file system.
const minFreeForText = 256 << 20

// answerToFile writes the stack to a file, and answers with the path of the file relative to the directory of
// incidents.
func (s *Service) answerToFile(ctx context.Context, c call) (a spool.Answer) {
	req := c.Request
	o := outcome{pid: req.Targets[0]}
	dir, err := s.incidentDir()
	if err != nil {
		a = historyFailure(err)
		s.journal(req, outcome{pid: o.pid, err: err, sqlState: a.SQLState}, time.Since(c.began))
		s.cfg.Journal.Add(req.Database, journalRow(req, c.began, captured{}, a))
		return a
	}
	dir.MinFree, dir.Ordinary, dir.Role = minFreeForText, !req.Superuser, req.Caller
	text, path := "", req.Settings["history"]
	if o.err = incident.CheckTextPath(path); o.err == nil {
		o.captured, o.err = s.capture(ctx, caller(req), o.pid, c.options, func(t *backtrace.Trace) {
			text = stackText(&req, t, render.Options{MaxBytes: limits.MaxText})
		})
	}
	if o.err == nil {
		head := fmt.Sprintf("PID %d at %s\n", o.pid, time.Now().UTC().Format("2006-01-02 15:04:05.000Z"))
		o.err = dir.WriteText(path, []byte(head+text+"\n"))
	}
	switch {
	case waited(ctx, o.err):
		a = spool.Busy()
	case o.err != nil:
		a = toFileFailure(o.pid, o.err)
	default:
		a = spool.Answer{Text: path}
	}
	o.sqlState = a.SQLState
	s.journal(req, o, time.Since(c.began))
	s.cfg.Journal.Add(req.Database, journalRow(req, c.began, o.captured, a))
	return a
}

// toFileFailure returns the answer to the SQL caller for an error. It contains no path of the host.
func toFileFailure(pid int, err error) spool.Answer {
	fault := spool.Answer{Level: "ERROR", SQLState: render.NotInPrerequisiteState}
	switch {
	case errors.Is(err, incident.ErrBadPath):
		fault.SQLState, fault.Message = render.InvalidParameterValue, "this is not a path for a backtrace"
		fault.Detail = "A path has up to four names, with letters of ASCII, digits and the characters _.- only, and ends in .txt. " +
			"It is below the directory of incidents, without symbolic links."
		fault.Hint = "Pass a path such as case_7/4711.txt."
	case errors.Is(err, incident.ErrExists):
		fault.SQLState, fault.Message = "58P02", "the file exists already"
		fault.Hint = "Pass another path."
	case errors.Is(err, incident.ErrTooMany):
		fault.SQLState, fault.Message = "53400", "there are too many files of backtraces"
		fault.Hint = "Remove old files from the directory of incidents on the worker's host."
	case errors.Is(err, incident.ErrNoSpace):
		fault.SQLState, fault.Message = "53100", "too little space is free for a backtrace"
		fault.Hint = "Free space on the worker's host."
	case errors.Is(err, incident.ErrDirectory):
		fault.SQLState, fault.Message = "58030", "the backtrace could not be written"
		fault.Hint = "The log of the worker says why."
	default:
		return failure(pid, err)
	}
	return fault
}
