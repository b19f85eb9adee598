// Package backtrace defines the result of a capture as plain data: threads, frames and figures. Package capture makes
// the result and package render prints it. This package imports neither.
package backtrace

import (
	"fmt"
	"time"

	"pg_stat_backtrace/worker/report/units"
)

// A Trace is the named stack of a process at one time.
type Trace struct {
	PID int
	// Engine is how the process was captured: "stop" or, without a stop, "blocked" (it slept), "running" (sampled on
	// the CPU), or "blocked+running" (some threads each way).
	Engine string
	// NotStopped is the reason for which a process could not be stopped and was captured by another engine. Otherwise
	// it is empty.
	NotStopped string
	// Slept is set if the process slept and was captured without a stop. The stack is then as exact as with a stop.
	Slept bool
	// Unrecognised is the reason for which a PostgreSQL server's own state was not read: its program has a server's
	// variables, but its version is unknown. Otherwise it is empty.
	Unrecognised string
	// LevelsMissing is the reason for which PL/pgSQL levels are missing: the process was sampled on the CPU, or has too many.
	// Otherwise it is empty.
	LevelsMissing string
	// Pause is an upper bound on how long the process was stopped. Held is the part of Pause after the worker noticed
	// the stop. Both are 0 without a stop.
	Pause, Held time.Duration
	// Unwind, Symbolize and Context are the times of the steps after the pause: walking the stacks, naming their
	// frames, and reading what a PostgreSQL process says about itself.
	Unwind    time.Duration
	Symbolize time.Duration
	Context   time.Duration
	// Total is the time of the whole capture, including reading /proc and waiting for the stop.
	Total   time.Duration
	Threads []Thread
	// Goroutines are the goroutines of a Go program, in the order of their numbers, and Go is the program's Go version.
	// If goroutines were requested, Threads is empty.
	Goroutines []Goroutine
	Go         string
	// GoroutinesLeftOut is the number of goroutines that are missing: beyond the limit of one stop, unreadable, or not
	// kept by the caller's filter.
	GoroutinesLeftOut int
	// Query is the text of the statement that a PostgreSQL process runs, as far as it was read. QueryCut is set if it
	// is truncated. QueryFrame is an index into the frames of the first thread: the frame that shows the query.
	Query      string
	QueryCut   bool
	QueryFrame int
	// Wait is the wait event of a PostgreSQL process.
	Wait Wait
	// Session has what the server's memory says about the process; nil: not read.
	Session *Session
}

// A Session has facts about one process of a server, read from the server's memory. Unknown facts are empty.
type Session struct {
	// Time is when the capture began.
	Time time.Time
	// Title is the title of the process that ps(1) shows.
	Title string
	// Type and State are in the words of pg_stat_activity. Database and User are names, or object ids as "oid 5".
	Type, Database, User, State string
	// Major is the major version of the server.
	Major int
	// Mode is the mode of the lock that the process waits for, and Holder describes the process that holds this lock. Relation is
	// the name of the relation that is locked, if its name is certain. If no process holds the lock in a mode that conflicts, Ahead is
	// the process that waits in front.
	Mode, Relation, Holder, Ahead string
}

// Depth returns the number of frames of all threads.
func (t *Trace) Depth() (n int) {
	for i := range t.Threads {
		n += len(t.Threads[i].Frames)
	}
	return n
}

// A Thread is one thread of a trace.
type Thread struct {
	TID  int
	Name string
	// State is the thread's state letter of proc(5) before the capture.
	State byte
	// Stop says why the walk ended. Whole is set if the walk reached the end of the stack.
	Stop  string
	Whole bool
	// Generated is set if the walk ended in code that was compiled at run time, without its call frame information.
	Generated bool
	// Kernel lists the kernel functions of a thread in uninterruptible sleep, innermost first. If the kernel does not
	// show the whole stack, Kernel has only the innermost function.
	Kernel []string
	// Frames are innermost first.
	Frames []Frame
}

// GeneratedNote returns a sentence for the user. It says that n of the stacks (the parameter of is their number) end in
// code compiled at run time, why, and how to prevent this. If n is 0, it returns "".
func GeneratedNote(n, of int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %s (%.1f %%) end in code compiled at run time (JIT): its call frame information was "+
		"gone when they were unwound, so the callers are missing; they are there with jit = off",
		n, units.Count(of, "stack"), 100*float64(n)/float64(max(1, of)))
}

// A Goroutine is one goroutine of a Go program.
type Goroutine struct {
	// Thread has the stack of the goroutine. TID, Name and State are those of the thread that runs the goroutine, if
	// any.
	Thread

	ID uint64
	// Status is the state of the goroutine or the reason for its wait, in Go's words.
	Status string
	// Locked is set if the goroutine is bound to one thread.
	Locked bool
	// Creator is the function that created the goroutine, and Parent the number of the goroutine that called Creator.
	// If unknown, they are empty and 0.
	Creator string
	Parent  uint64
}

// A Frame is one line of a stack.
type Frame struct {
	Level int
	// Address is the frame's program counter. It is a return address, except in the innermost frame and in a frame
	// that a signal interrupted.
	Address uint64
	// Function is empty if no symbol covers the address.
	Function string
	// Offset is the distance of Address from the function's start or, if Function is empty, from the module's load
	// bias.
	Offset uint64
	// Module is the base name of the image, or a description in brackets such as "[anon]" if the address is not in an
	// image.
	Module  string
	BuildID string
	// ModuleOffset is the address in the image, as addr2line(1) expects it.
	ModuleOffset uint64
	File         string
	Line         int
	// Inlined is set for a function that was inlined into the next frame's function.
	Inlined bool
	// Derived is set if Function comes from the image's own code instead of a symbol.
	Derived bool
	// Levels are the PostgreSQL levels that belong to the frame, innermost first.
	Levels []Level
	// Note is a remark: how the frame was found if not by call frame information, or that it is a signal trampoline.
	Note string
}

// Label returns the frame's function. If no symbol covers the address, it returns the module and the offset, and the
// note in brackets: "postgres+0x467a3d [static, in lock.c]". Profiles and lists of calls use this label.
func (f *Frame) Label() string {
	switch {
	case f.Function != "":
		return f.Function
	case f.Note != "":
		return fmt.Sprintf("%s+%#x [%s]", f.Module, f.Offset, f.Note)
	}
	return fmt.Sprintf("%s+%#x", f.Module, f.Offset)
}

// Name returns the frame's function or, if no symbol covers the address, its module.
func (f *Frame) Name() string {
	if f.Function != "" {
		return f.Function
	}
	return f.Module
}
