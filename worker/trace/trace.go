// Package trace holds what a capture gives: threads, frames and figures, as
// plain data. It is what package capture makes and package render prints; it
// knows neither.
package trace

import "time"

// A Trace is the named stack of a process at one moment.
type Trace struct {
	PID int
	// Engine is how the process was captured: "stop"; or, without a stop,
	// "blocked" (it slept), "running" (sampled on the CPU), "blocked+running"
	// (some threads so, some so).
	Engine string
	// NotStopped says why a process that was to be stopped was captured by
	// another engine; else it is empty.
	NotStopped string
	// Unrecognised is the reason why a PostgreSQL server's own state was not read: its program has the variables of one,
	// and its version is not known. Else it is empty.
	Unrecognised string
	// Pause is how long the process stood still at most, Held the part of it
	// from the moment the stop was known; both are 0 without a stop.
	Pause, Held time.Duration
	// Unwind, Symbolize and Context are what the steps after the pause took: to walk the stacks, to name their frames,
	// and to read what a PostgreSQL process says of itself.
	Unwind    time.Duration
	Symbolize time.Duration
	Context   time.Duration
	// Total is the whole capture, reading /proc and waiting for the stop
	// included.
	Total   time.Duration
	Threads []Thread
	// Goroutines are those of a Go program, by number; Go is its version. They
	// are there where they were asked for, and threads are not then.
	Goroutines []Goroutine
	Go         string
	// GoroutinesLeftOut counts those that are too many for one stop, or could
	// not be read.
	GoroutinesLeftOut int
	// Query is the text of the statement that a PostgreSQL process was sent, as far as it was read; QueryCut is set if
	// there is more of it. QueryFrame is the number of the frame of the first thread that it stands at.
	Query      string
	QueryCut   bool
	QueryFrame int
	// Wait is what a PostgreSQL process waits for.
	Wait Wait
}

// Depth is the number of frames, of all threads.
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
	// State is the letter of proc(5) that the thread had before the capture.
	State byte
	// Stop says why the walk ended; Whole is set if it saw the stack's end.
	Stop  string
	Whole bool
	// Kernel is where in the kernel a thread in uninterruptible sleep was seen,
	// innermost first; only the innermost function where the kernel shows no
	// more.
	Kernel []string
	// Frames are innermost first.
	Frames []Frame
}

// A Goroutine is one goroutine of a Go program.
type Goroutine struct {
	// Thread has its stack, and the thread that it runs on, if any.
	Thread

	ID uint64
	// Status is what it does or waits for, in Go's words.
	Status string
	// Locked is set if it is bound to one thread.
	Locked bool
	// Creator is the function that made it, Parent the number of the goroutine
	// that did; empty and 0 where that is not known.
	Creator string
	Parent  uint64
}

// A Frame is one line of a stack.
type Frame struct {
	Level int
	// Address is the frame's program counter: a return address, except in
	// the innermost frame and in one that a signal interrupted.
	Address uint64
	// Function is empty where no symbol covers the address.
	Function string
	// Offset is Address less the function's start, or less the module's load
	// bias where Function is empty.
	Offset uint64
	// Module is the base name of the image, or a bracketed description such
	// as "[anon]" of what is mapped there instead.
	Module  string
	BuildID string
	// ModuleOffset is the address in the image, what addr2line(1) takes.
	ModuleOffset uint64
	File         string
	Line         int
	// Inlined is set for a function that the one below it contains.
	Inlined bool
	// Derived is set for a Function that no symbol names: it follows from the image's own code.
	Derived bool
	// Levels are those of PostgreSQL that belong to the frame, innermost first.
	Levels []Level
	// Note is a remark for a reader: how the frame was found when not by
	// call frame information, or that it is a signal trampoline.
	Note string
}

// Name is what stands for the frame in one word: the function, or the module
// where no symbol covers the address.
func (f *Frame) Name() string {
	if f.Function != "" {
		return f.Function
	}
	return f.Module
}
