package render

import (
	"strconv"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Short renders the trace on one line, innermost frame first, in the manner of
// Oracle's short_stack: "f()+12<-g()+8". Offsets are decimal. Threads, or goroutines, are
// separated by " | ", and "<-..." stands for what a cut stack lacks.
func Short(t *backtrace.Trace, o Options) string {
	buf := make([]byte, 0, 1024)
	for i := range t.Threads {
		buf = appendShort(buf, &t.Threads[i], o)
	}
	for i := range t.Goroutines {
		buf = appendShort(buf, &t.Goroutines[i].Thread, o)
	}
	return string(buf)
}

func appendShort(buf []byte, th *backtrace.Thread, o Options) []byte {
	if len(buf) > 0 {
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
	return buf
}
