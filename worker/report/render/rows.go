package render

import (
	"strconv"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Rows renders the trace as a table with a row for each frame. The columns are level, address, function, offset, module, build-id,
// address in the module, source file, line, inlined, thread, note, derived. Missing values are empty cells. If the walk of a
// stack ended early, the note of its last row has the reason. If a process was not stopped, the note of the first row has the
// method of the capture, and the kernel functions in which the process slept.
func Rows(t *backtrace.Trace, o Options) [][]string {
	rows := make([][]string, 0, t.Depth())
	for i := range t.Threads {
		th := &t.Threads[i]
		for j := range th.Frames {
			f := &th.Frames[j]
			note := f.Note
			for k, list := 0, remarks(t, i); j == 0 && k < len(list); k++ {
				note = joinNotes(note, list[k])
			}
			row := []string{
				strconv.Itoa(f.Level), string(append([]byte("0x"), appendHex(nil, f.Address, 16)...)),
				escape(f.Function, o), hex(f.Offset), escape(f.Module, o), f.BuildID, hex(f.ModuleOffset),
				escape(f.File, o), "", strconv.FormatBool(f.Inlined), strconv.Itoa(th.TID), "",
				strconv.FormatBool(f.Derived),
			}
			if f.Line > 0 {
				row[8] = strconv.Itoa(f.Line)
			}
			if f.BuildID == "" && f.Function == "" && f.ModuleOffset == 0 {
				row[6] = ""
			}
			if j == len(th.Frames)-1 && !th.Whole {
				row[11] = "stack cut: " + th.Stop
			}
			row[11] = escape(joinNotes(joinNotes(contextNote(t, i, j), note), row[11]), o)
			rows = append(rows, row)
		}
	}
	return rows
}

func escape(s string, o Options) string { return string(appendName(nil, s, o.ASCII)) }

func joinNotes(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// Names renders only the names of the functions, a line for each frame, innermost first. Equal stacks of different processes or
// times give equal texts. If no symbol covers an address, the line has the module and the offset, which are equal in all
// processes.
func Names(t *backtrace.Trace, o Options) string {
	buf := make([]byte, 0, 1024)
	for i := range t.Threads {
		th := &t.Threads[i]
		for j := range th.Frames {
			f := &th.Frames[j]
			if o.MaxBytes > 0 && len(buf) > o.MaxBytes {
				return string(append(buf, "..."...))
			}
			buf = appendWord(buf, f.Name(), o.ASCII)
			if f.Function == "" {
				buf = append(buf, "+0x"...)
				buf = strconv.AppendUint(buf, f.Offset, 16)
			}
			buf = append(buf, '\n')
		}
		if !th.Whole {
			buf = append(buf, "...\n"...)
		}
	}
	if len(buf) > 0 {
		buf = buf[:len(buf)-1]
	}
	return string(buf)
}
