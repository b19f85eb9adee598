package render

import (
	"strconv"

	"pg_stat_backtrace/worker/trace"
)

// Short renders the trace on one line, innermost frame first, in the manner of
// Oracle's short_stack: "f()+12<-g()+8". Offsets are decimal. Threads are
// separated by " | ", and "<-..." stands for what a cut stack lacks.
func Short(t *trace.Trace, o Options) string {
	buf := make([]byte, 0, 1024)
	for i := range t.Threads {
		th := &t.Threads[i]
		if i > 0 {
			buf = append(buf, " | "...)
		}
		for j := range th.Frames {
			f := &th.Frames[j]
			if j > 0 {
				buf = append(buf, "<-"...)
			}
			buf = appendWord(buf, f.Name(), o.ASCII)
			if f.Function != "" {
				buf = append(buf, "()"...)
			}
			buf = append(buf, '+')
			buf = strconv.AppendUint(buf, f.Offset, 10)
		}
		if !th.Whole {
			buf = append(buf, "<-..."...)
		}
	}
	return string(buf)
}
