// Package runningplan reads the statements that a server's processes execute now: their plans with the progress, the plans of
// parallel workers, and the progress of utility commands.
//
// A calibration (calibrate.go) compares plans that were read from memory with EXPLAIN, for one build of the server. Its result, a
// plan.Proof, has the fields that agreed.
//
// The package must not decide whether a caller may see the statements of a process.
package runningplan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// Unproven is the remark on plans of a build that was not compared with EXPLAIN.
const Unproven = "Unproven layout: offsets of this major version, checked by links in memory, and not compared with this build."

// Process has the statements that one process executes.
type Process struct {
	PID int
	// Plans are the plans; nil: they could not be read, for the reason Err.
	Plans *capture.Plans
	Err   error
	// Session is the process's entry in the server's list of processes; nil: not known.
	Session *moment.Session
	// Utility is the progress that a utility command reports; nil: the process runs no such command, or the command reports
	// nothing.
	Utility *plan.CommandReport
	// Function is the innermost function of a procedural language on the stack, with the line, as the caller has found it a moment
	// after the plans; empty: there is none, or it was not looked for.
	Function string
	// Workers are the parallel workers of the process. Each was read at a different time.
	Workers []*Process
}

// Reader reads plans.
type Reader struct {
	Capturer *capture.Capturer
	NonStop  bool
	// Proof returns the proof of a build, nil if there is none. With a proof, only the proven fields are kept. Without one, all
	// fields are kept, and Plans.Proven is false. If Proof is nil, no build has a proof.
	Proof func(build string, major int) *plan.Proof
	// Explain returns the message for an error. If it is nil, the error's own text is printed.
	Explain func(pid int, err error) string
}

// Read reads the plans of a process and of its parallel workers, and the progress of its utility command. sessions is the
// server's list of processes; nil: not known, workers and utility commands are then missing. An error is in Process.Err.
func (r *Reader) Read(ctx context.Context, target process.Target, sessions *moment.Moment) *Process {
	p := r.one(ctx, target, sessions)
	if p.Session == nil {
		return p
	}
	for i := range sessions.Sessions {
		s := &sessions.Sessions[i]
		if s.Leader != 0 && s.Leader == p.Session.ServerPID && s.PID != p.PID {
			p.Workers = append(p.Workers, r.one(ctx, process.Target{PID: s.PID, UID: target.UID, Rights: target.Rights}, sessions))
		}
	}
	return p
}

func (r *Reader) one(ctx context.Context, target process.Target, sessions *moment.Moment) *Process {
	p := &Process{PID: target.PID}
	p.Plans, p.Err = r.Capturer.Plans(ctx, target, r.NonStop)
	if p.Err == nil && r.Proof != nil && len(p.Plans.Levels) > 0 {
		if proof := r.Proof(p.Plans.Build, p.Plans.Major); proof != nil {
			proof.Apply(p.Plans.Levels)
			p.Plans.Proven = true
		}
	}
	if sessions == nil {
		return p
	}
	if i := slices.IndexFunc(sessions.Sessions, func(s moment.Session) bool { return s.PID == target.PID }); i >= 0 {
		p.Session = &sessions.Sessions[i]
		p.Utility = plan.DescribeCommand(sessions.Version, p.Session.Progress)
	}
	return p
}

// Whole reports whether all plans of the process and of its workers could be read completely.
func (p *Process) Whole() bool {
	if p.Err != nil || !p.Plans.Whole {
		return false
	}
	for _, l := range p.Plans.Levels {
		if l.Top == nil {
			return false
		}
	}
	for _, w := range p.Workers {
		// A worker may end between the read of its leader and its own read, so its end is no missing part.
		if !w.Whole() && !errors.Is(w.Err, process.ErrExited) && !errors.Is(w.Err, capture.ErrPlanChanges) {
			return false
		}
	}
	return true
}

// JSONProcess has the statements of a process with their plans.
type JSONProcess struct {
	PID     int `json:"pid"`
	Version int `json:"server_version,omitempty"`
	// Deprecated: read server_version.
	Former int `json:"version,omitempty"`
	// Proven is set if the offsets in structures of this server were compared with an EXPLAIN of the same server.
	Proven bool `json:"layout_proven"`
	// Engine is the method by which the memory was copied, such as stop.
	Engine string `json:"engine,omitempty"`
	// Whole is set if the call stack was read to its end, so that no statement is missing.
	Whole bool `json:"whole_stack"`
	// OneMoment is set if the progress of all nodes was read at the same moment.
	OneMoment bool `json:"progress_of_one_moment"`
	// Statements are the statements in the form of EXPLAIN (FORMAT JSON), the outermost first.
	Statements []*plan.Level `json:"statements"`
	// Function is the innermost function of a procedural language on the stack, with the line, a moment after the plans.
	Function string `json:"function,omitempty"`
	// Utility is the progress of a command without a plan.
	Utility *jsonUtility `json:"utility,omitempty"`
	Error   string       `json:"error,omitempty"`
	// Workers are the parallel workers of the process.
	Workers []*Process `json:"workers,omitempty"`
}

// jsonUtility has the columns of a progress view, such as pg_stat_progress_vacuum.
type jsonUtility struct {
	View    string         `json:"view"`
	Command string         `json:"command"`
	Target  uint32         `json:"relid,omitempty"`
	Columns map[string]any `json:"columns"`
}

// MarshalJSON returns the process in the form of JSONProcess.
func (p *Process) MarshalJSON() ([]byte, error) { //nolint:wrapcheck // an error of the encoder
	out := JSONProcess{PID: p.PID, Statements: []*plan.Level{}, Workers: p.Workers, Function: p.Function}
	if p.Err != nil {
		out.Error = p.Err.Error()
	}
	if p.Plans != nil {
		out.Version, out.Engine, out.Whole, out.OneMoment = p.Plans.Major, p.Plans.Engine, p.Plans.Whole, p.Plans.Figures
		out.Former, out.Proven = out.Version, p.Plans.Proven
		if len(p.Plans.Levels) > 0 {
			out.Statements = p.Plans.Levels
		}
	}
	if u := p.Utility; u != nil {
		columns := map[string]any{}
		for _, c := range u.Columns {
			columns[c.Name] = c.Value
		}
		out.Utility = &jsonUtility{u.View, u.Command, u.TargetOID, columns}
	}
	return json.Marshal(out)
}

// Text returns the lines for a process. It cuts the text of a statement to width characters. The text has no characters that could
// control a terminal.
func (r *Reader) Text(p *Process, width int) string {
	t := &text{width: width, reader: r}
	t.process(p, "")
	return t.String()
}

type text struct {
	strings.Builder

	width  int
	reader *Reader
}

func (t *text) line(indent, format string, args ...any) { //nolint:goprintffuncname // a short name, used only in this file
	t.WriteString(indent + render.VisibleLine(fmt.Sprintf(format, args...)) + "\n")
}

func (t *text) process(p *Process, indent string) {
	if p.Err != nil {
		message := p.Err.Error()
		if t.reader.Explain != nil {
			message = t.reader.Explain(p.PID, p.Err)
		}
		t.line(indent, "process %d: no plan: %s", p.PID, message)
		t.utility(p, indent)
		return
	}
	all := len(p.Plans.Levels)
	for _, l := range p.Plans.Levels {
		all += max(l.LeftOut-1, 0)
	}
	runs := statements(all)
	if all == 0 && p.Utility != nil {
		runs = "a utility command"
	}
	t.line(indent, "process %d, PostgreSQL %d: %s", p.PID, p.Plans.Major, runs)
	if !p.Plans.Whole {
		t.line(indent, "The stack could not be followed to its end: outer statements may be missing.")
	}
	t.utility(p, indent)
	if len(p.Plans.Levels) == 0 {
		if p.Utility == nil {
			t.line(indent, "The process executes no plan now: it is idle, plans, starts or ends a statement, or runs a utility command.")
		}
		return
	}
	if !p.Plans.Proven {
		t.line(indent, Unproven)
	}
	if !p.Plans.Figures {
		t.line(indent, "Some progress is missing: it could not be read in the moment of the mark.")
	}
	number := 0
	for _, l := range p.Plans.Levels {
		t.line("", "")
		number++
		if l.LeftOut > 0 {
			t.line(indent, "%s", l.Reason)
			number += l.LeftOut - 1
			continue
		}
		t.line(indent, "level %d: %s", number, t.source(l.Source))
		if l.Returned != nil {
			t.line(indent, "   rows returned: %d", *l.Returned)
		}
		for row := range strings.Lines(l.Text(true)) {
			t.line(indent, "%s", strings.TrimSuffix(row, "\n"))
		}
		if l.Top == nil {
			t.line(indent, "no plan: %s", l.Reason)
		} else if l.Reason != "" {
			t.line(indent, "%s", l.Reason)
		}
	}
	if p.Function != "" {
		t.line("", "")
		t.line(indent, "A moment later in function %s; its stack: pg_stat_backtrace capture %d", p.Function, p.PID)
	}
	for _, w := range p.Workers {
		t.line("", "")
		t.line(indent, "parallel worker, read a moment later:")
		t.process(w, indent+"    ")
	}
}

// source returns the start of a statement's text as one line.
func (t *text) source(s string) string {
	runes := []rune(strings.Join(strings.Fields(s), " "))
	switch {
	case len(runes) == 0:
		return "text unknown"
	case len(runes) > t.width:
		return string(runes[:t.width]) + "..."
	}
	return string(runes)
}

// utility prints the progress of a utility command: the columns of its pg_stat_progress view.
func (t *text) utility(p *Process, indent string) {
	if p.Utility == nil {
		return
	}
	u := p.Utility
	target := ""
	if u.Target != "" {
		target = " on " + u.Target
	} else if u.TargetOID != 0 {
		target = fmt.Sprintf(" on relation %d", u.TargetOID)
	}
	t.line(indent, "%s%s reports, as in pg_stat_progress_%s:", u.Command, target, u.View)
	for _, c := range u.Columns {
		if c.Name != "command" {
			t.line(indent, "  %s: %v", c.Name, c.Value)
		}
	}
}

func statements(levels int) string {
	if levels == 0 {
		return "no statement"
	}
	return units.Count(levels, "statement")
}
