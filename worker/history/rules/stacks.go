package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/worker/report/units"
)

// Conditions for samples with the same stack.
const (
	varied     = 2     // number of innermost functions that may differ between samples
	leastLooks = 4     // least number of samples of a finding
	procedural = "pl:" // prefix of functions of a procedural language; equals recorder.Procedural
)

// loopKey is the identity of a statement of a process.
type loopKey struct {
	pid                    int32
	start, xact, statement int64
}

// loop is a statement that was on a processor at each look.
type loop struct {
	first, seen time.Time     // the first and the last sample with the same stack
	ran         time.Duration // Proc.Ran at the first sample
	samples     int
	common      []string // outermost functions that all samples have in common, the outermost first
	deepest     int      // number of functions of the deepest sample
	looked      time.Time
}

// sameStacks finds statements that are on a processor at each look and whose samples have the same functions. The two innermost
// functions may differ, and so may the functions that the interpreter of PL/pgSQL calls. Samples prove nothing about the time
// between them, so after a long time without a sample the age of the finding begins at 0 again. A process that is ready to run
// and gets no processor has the same stack too. So the process must have run for at least half of the time.
func sameStacks(v *view) []Finding {
	rule, ok := v.e.config.on(SameStack)
	if !ok {
		clear(v.e.loops)
		return nil
	}
	var list []Finding
	for i := range v.Rows {
		r := &v.Rows[i]
		p := v.Procs[r.PID]
		if r.Ended || r.WaitType != "" || p.State != 'R' || p.Ran == 0 || r.QueryStart == 0 {
			continue
		}
		k := loopKey{r.PID, r.Start, r.XactStart, r.QueryStart}
		l := v.e.loops[k]
		if l == nil {
			if len(v.e.loops) >= maxCauses {
				continue
			}
			l = &loop{}
			v.e.loops[k] = l
		}
		l.looked = v.Time
		pause := max(rule.After/3, 2*v.Period) //nolint:mnd // a third of the rule's time
		if s, ok := v.Stacks[r.PID]; ok && s.Statement == r.QueryStart && len(s.Functions) > 0 {
			l.add(v.Time, p.Ran, outer(s.Functions), pause)
		}
		age := l.seen.Sub(l.first)
		if age < rule.After || l.samples < leastLooks || v.Time.Sub(l.seen) > pause || p.Ran-l.ran < age/2 {
			continue
		}
		list = append(list, Finding{
			Rule: SameStack, Cause: v.cause(r.PID), role: r.UserID, Processes: []int32{r.PID}, Since: v.Time.Add(-age),
			Summary: fmt.Sprintf("process %d has been on a processor for %s in one statement, and each of %d samples has the same stack",
				r.PID, units.Age(age), l.samples),
		})
	}
	if !v.Partial {
		for k, l := range v.e.loops {
			if !l.looked.Equal(v.Time) {
				delete(v.e.loops, k)
			}
		}
	}
	return list
}

// add adds a sample. If the sample differs from the samples before, or comes more than the time pause after the last sample, it
// becomes the first sample of a new loop.
func (l *loop) add(now time.Time, ran time.Duration, functions []string, pause time.Duration) {
	if l.samples > 0 && now.Sub(l.seen) <= pause {
		n := 0
		for n < min(len(l.common), len(functions)) && l.common[n] == functions[n] {
			n++
		}
		if deepest := max(l.deepest, len(functions)); n > 0 && n >= deepest-varied {
			l.common, l.deepest, l.seen = l.common[:n], deepest, now
			l.samples++
			return
		}
	}
	l.first, l.seen, l.ran, l.samples, l.common, l.deepest = now, now, ran, 1, functions, len(functions)
}

// interpreters are functions of the PL/pgSQL module below which it interprets a function. The last two are dynamic symbols, which
// are also known if the module has no symbol table.
//
//nolint:gochecknoglobals // read only
var interpreters = []string{"plpgsql_exec_function", "plpgsql_inline_handler", "plpgsql_call_handler"}

// outer returns the functions that identify a stack, the outermost first. If a PL/pgSQL interpreter is innermost, it omits the
// functions that the interpreter calls, except if they run SQL. It also omits the names of procedural functions, which not all
// samples have.
func outer(functions []string) []string {
	begin := 0
	for i, f := range functions {
		if strings.Contains(f, "SPI_") || strings.Contains(f, "ExecutorRun") {
			break
		}
		if slices.Contains(interpreters, f) {
			begin = i
			break
		}
	}
	list := make([]string, 0, len(functions)-begin)
	for _, f := range functions[begin:] {
		if !strings.HasPrefix(f, procedural) {
			list = append(list, f)
		}
	}
	slices.Reverse(list)
	return list
}
