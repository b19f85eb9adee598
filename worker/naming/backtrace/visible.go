package backtrace

import (
	"slices"
	"strings"
)

// WithoutStatements returns the trace without the text of the statements that functions run. Only words such as "SQL
// statement" remain. The text may be dynamic SQL of a function's owner, with data that the reader of the stack must
// not see. The text of the client's query stays. WithoutStatements does not change t. It returns t itself if there is
// no such text.
func (t *Trace) WithoutStatements() *Trace {
	if !slices.ContainsFunc(t.Threads, func(th Thread) bool { return slices.ContainsFunc(th.Frames, hasStatement) }) {
		return t
	}
	out := *t
	out.Threads = slices.Clone(t.Threads)
	for i := range out.Threads {
		frames := slices.Clone(out.Threads[i].Frames)
		for j := range frames {
			if hasStatement(frames[j]) {
				frames[j].Levels = withoutStatements(frames[j].Levels)
			}
		}
		out.Threads[i].Frames = frames
	}
	return &out
}

func hasStatement(f Frame) bool {
	return slices.ContainsFunc(f.Levels, func(l Level) bool { return l.Query != "" })
}

func withoutStatements(levels []Level) []Level {
	out := slices.Clone(levels)
	for i := range out {
		if l := &out[i]; l.Query != "" {
			l.Text, _, _ = strings.Cut(l.Text, ` "`)
			l.Query, l.Cut = "", false
		}
	}
	return out
}

// WithoutNames returns a copy for readers that must see no text, and no name of a user's object. It removes the query,
// the session, the goroutines, the names of threads, the levels, and the names of code compiled at run time, which can
// be those of the user's functions. The functions in images, and the wait event, remain.
func (t *Trace) WithoutNames() *Trace {
	out := *t
	out.Query, out.QueryCut, out.QueryFrame, out.Session = "", false, 0, nil
	out.Goroutines, out.Go, out.GoroutinesLeftOut = nil, "", 0
	out.Threads = slices.Clone(t.Threads)
	for i := range out.Threads {
		th := &out.Threads[i]
		th.Name, th.Frames = "", slices.Clone(th.Frames)
		for j := range th.Frames {
			f := &th.Frames[j]
			f.Levels = nil
			if f.Function != "" && f.BuildID == "" && f.ModuleOffset == 0 { // not in an image
				f.Function, f.Offset, f.File, f.Line, f.Note = "", f.Address, "", 0, ""
			}
		}
	}
	return &out
}
