// Package render prints traces (backtrace.Trace): as pstack-like lines, briefly for people, and as JSON. It does not know how
// a trace was made.
//
// The package also converts the worker's log lines to other formats (logformat.go): OpenTelemetry's JSON, and journald's native
// protocol.
//
// It also decides which characters of texts from outside this program may be shown (visible.go), for every command and every
// answer. FaultOf converts errors of the capture to PostgreSQL's form (faultof.go): SQLSTATE, message, detail and hint, for SQL and
// for the command line. The texts follow the "Error Message Style Guide" of the PostgreSQL documentation.
package render

import (
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Options configures a rendering.
type Options struct {
	// ASCII escapes every character outside ASCII as \uXXXX, for a reader
	// whose encoding is not UTF-8.
	ASCII bool
	// Colour makes Brief use escape sequences for the colours of a terminal.
	Colour bool
	// MaxBytes is the number of bytes after which Text and Names omit further lines, with a remark; 0 means no limit.
	MaxBytes int
}

// Text renders the frames as pstack-like lines, each of them
//
//	#LEVEL  0xADDRESS in NAME+0xOFFSET (MODULE) FILE:LINE [NOTE]
//
// For a PostgreSQL process, further notes have the lines of its CONTEXT at their frames, the wait event at the innermost frame, and
// the query at the frame that received it.
//
// A trace of several threads has a header line before each thread, with the reason if the thread has no frames. For a process that
// was captured without a stop, a note on the first frame or in the header line has the method, and the kernel functions in which a
// thread sleeps. There is no trailing newline.
func Text(t *backtrace.Trace, o Options) string {
	buf := make([]byte, 0, 4096)
	for i := range t.Threads {
		if len(t.Threads) > 1 {
			buf = appendHeader(buf, t, i, o)
		}
		buf = appendThread(buf, t, i, o)
	}
	for i := range t.Goroutines {
		buf = appendGoroutine(buf, t, i, o)
	}
	if t.GoroutinesLeftOut > 0 {
		buf = append(buf, "and "...)
		buf = strconv.AppendInt(buf, int64(t.GoroutinesLeftOut), 10)
		buf = append(buf, " more goroutines\n"...)
	}
	if len(buf) > 0 {
		buf = buf[:len(buf)-1]
	}
	return string(buf)
}

// appendGoroutine appends a header line and a goroutine, in a form similar to Go's own stack traces.
func appendGoroutine(buf []byte, t *backtrace.Trace, number int, o Options) []byte {
	g := &t.Goroutines[number]
	buf = append(buf, "Goroutine "...)
	buf = strconv.AppendUint(buf, g.ID, 10)
	buf = append(buf, " ["...)
	buf = appendName(buf, g.Status, o.ASCII)
	if g.Locked {
		buf = append(buf, ", locked to thread"...)
	}
	buf = append(buf, ']')
	if g.TID != 0 {
		buf = append(buf, " on thread "...)
		buf = strconv.AppendInt(buf, int64(g.TID), 10)
	}
	if g.Creator != "" {
		buf = append(buf, " created by "...)
		buf = appendName(buf, g.Creator, o.ASCII)
	}
	if g.Parent != 0 {
		buf = append(buf, " in goroutine "...)
		buf = strconv.AppendUint(buf, g.Parent, 10)
	}
	if len(g.Frames) == 0 {
		buf = append(buf, " ["...)
		buf = appendName(buf, g.Stop, o.ASCII)
		buf = append(buf, ']')
	}
	buf = append(buf, '\n')
	return appendFrames(buf, t, &g.Thread, false, nil, o)
}

func appendHeader(buf []byte, t *backtrace.Trace, number int, o Options) []byte {
	th := &t.Threads[number]
	buf = append(buf, "Thread "...)
	buf = strconv.AppendInt(buf, int64(th.TID), 10)
	buf = append(buf, " ("...)
	buf = appendName(buf, th.Name, true)
	buf = append(buf, ')')
	if th.State != 0 {
		buf = append(buf, " state "...)
		buf = append(buf, th.State)
	}
	if len(th.Frames) == 0 {
		buf = append(buf, " ["...)
		buf = appendName(buf, th.Stop, true)
		buf = append(buf, ']')
		for _, remark := range remarks(t, number) {
			buf = appendNote(buf, remark, o.ASCII)
		}
	}
	return append(buf, '\n')
}

// remarks returns the remarks on a thread's first frame: on the first thread, the method of a capture without a stop and the
// reasons for missing data; on each thread, the kernel functions in which it sleeps. Kernel functions are innermost first and
// without offsets.
func remarks(t *backtrace.Trace, thread int) []string {
	var list []string
	switch {
	case thread > 0 || t.Engine == "" || t.Engine == "stop" || t.Engine == "core" || t.Slept:
	case t.NotStopped == "":
		list = append(list, "not stopped, engine "+t.Engine)
	default:
		list = append(list, "not stopped: "+t.NotStopped+", engine "+t.Engine)
	}
	if thread == 0 && t.Unrecognised != "" {
		list = append(list, "server not recognised: "+t.Unrecognised)
	}
	if thread == 0 && t.LevelsMissing != "" {
		list = append(list, "PL/pgSQL levels missing: "+t.LevelsMissing)
	}
	if frames := t.Threads[thread].Kernel; len(frames) > 0 {
		names := make([]string, len(frames))
		for i, frame := range frames {
			names[i], _, _ = strings.Cut(frame, "+")
		}
		list = append(list, "in kernel: "+strings.Join(names, " <- "))
	}
	return list
}

// appendThread appends a line for each frame of a thread. If the walk of the stack ended early, the last frame's line has the
// reason, because each line must begin with a frame.
func appendThread(buf []byte, t *backtrace.Trace, number int, o Options) []byte {
	return appendFrames(buf, t, &t.Threads[number], number == 0, remarks(t, number), o)
}

// appendFrames appends the frames of a thread, with the remarks at the innermost frame. first is set for the trace's
// first thread, to whose frames it also adds the wait event and the query.
func appendFrames(buf []byte, t *backtrace.Trace, th *backtrace.Thread, first bool, remarks []string, o Options) []byte {
	for i := range th.Frames {
		last := i == len(th.Frames)-1
		if o.MaxBytes > 0 && len(buf) > o.MaxBytes && !last {
			return appendCut(buf, len(th.Frames)-i)
		}
		buf = appendFrame(buf, &th.Frames[i], o.ASCII)
		if first {
			buf = appendSession(buf, t, i, o.ASCII)
		}
		for j := 0; i == 0 && j < len(remarks); j++ {
			buf = appendNote(buf, remarks[j], o.ASCII)
		}
		if last && !th.Whole {
			buf = append(buf, " [stack cut: "...)
			buf = append(buf, th.Stop...)
			buf = append(buf, ']')
		}
		buf = append(buf, '\n')
	}
	return buf
}

func appendCut(buf []byte, frames int) []byte {
	buf = append(buf[:len(buf)-1], " [output cut: "...)
	buf = strconv.AppendInt(buf, int64(frames), 10)
	return append(buf, " more frames]\n"...)
}

func appendFrame(buf []byte, f *backtrace.Frame, ascii bool) []byte {
	start := len(buf)
	buf = append(buf, '#')
	buf = strconv.AppendInt(buf, int64(f.Level), 10)
	for len(buf)-start < len("#00 ") {
		buf = append(buf, ' ')
	}
	if buf[len(buf)-1] != ' ' {
		buf = append(buf, ' ')
	}
	buf = appendAddress(buf, f.Address)
	buf = append(buf, " in "...)
	buf = appendWord(buf, f.Name(), ascii)
	buf = append(buf, "+0x"...)
	buf = strconv.AppendUint(buf, f.Offset, 16)
	if f.Function != "" {
		buf = append(buf, " ("...)
		buf = appendName(buf, f.Module, ascii)
		buf = append(buf, ')')
	}
	return appendRemarks(buf, f, ascii)
}

func appendRemarks(buf []byte, f *backtrace.Frame, ascii bool) []byte {
	if f.File != "" {
		buf = append(buf, ' ')
		buf = appendName(buf, f.File, ascii)
		buf = append(buf, ':')
		buf = strconv.AppendInt(buf, int64(f.Line), 10)
	}
	if f.Inlined {
		buf = append(buf, " [inlined]"...)
	}
	for i := range f.Levels {
		buf = appendLevel(buf, &f.Levels[i], ascii)
	}
	return appendNote(buf, f.Note, ascii)
}

func appendNote(buf []byte, note string, ascii bool) []byte {
	if note == "" {
		return buf
	}
	buf = append(buf, " ["...)
	buf = appendName(buf, note, ascii)
	return append(buf, ']')
}

// appendAddress appends 0x and sixteen digits.
func appendAddress(buf []byte, addr uint64) []byte {
	const digits = "0123456789abcdef"
	buf = append(buf, '0', 'x')
	for shift := 60; shift >= 0; shift -= 4 {
		buf = append(buf, digits[addr>>uint(shift)&15])
	}
	return buf
}
