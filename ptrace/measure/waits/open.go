package waits

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"pg_stat_backtrace/ptrace/bpf"
)

// Options say how wait events are timed, and which figures are kept.
type Options struct {
	// Method is the method of timing; empty: Auto.
	Method Method
	// Mechanism, if not empty, is the only mechanism of the method to try: see Info.Mechanism.
	Mechanism string
	// Keep are processes that stay in Snapshot.Processes when they have ended.
	Keep []int
	// KeepEnded is the number of further processes that stay in Snapshot.Processes when they have ended.
	KeepEnded int
	// Queries attributes waits to queries, if the method supports this.
	Queries bool
	// Stacks copies the stacks of some waits. Only the method Exact supports this.
	Stacks StackOptions
}

// way is one mechanism by which the kernel reports wait events.
type way struct {
	info  Info
	hooks hooks
}

//nolint:gochecknoglobals // a table
var (
	fentry      = way{Info{Method: Exact, Mechanism: "fentry"}, atFunctions}
	tracepoints = way{Info{Method: Exact, Mechanism: "tracepoints"}, atCalls}
	switches    = way{Info{Method: Blocked, Mechanism: "sched_switch"}, atSwitches}
	polling     = way{info: Info{Method: Sampled, Mechanism: "polling"}}
)

// ways returns the mechanisms of a method, the best first. Programs at tracepoints run at every system call of the host. So
// ways includes them only if the caller asks for exact figures.
func ways(m Method) ([]way, error) {
	switch m {
	case Auto, "":
		return []way{fentry, switches, polling}, nil
	case Exact:
		return []way{fentry, tracepoints}, nil
	case Blocked:
		return []way{switches}, nil
	case Sampled:
		return []way{polling}, nil
	}
	return nil, fmt.Errorf("%w: there is no method %q", ErrUnsupported, m)
}

// Open starts to time a server's wait events with the best mechanism that works. Info.Reasons of the result says why better
// mechanisms are not used. The error wraps ErrUnsupported, ErrServerGone, fs.ErrPermission, or the error of a read.
func Open(s Server, o Options) (Provider, error) {
	candidates, err := ways(o.Method)
	if err != nil {
		return nil, err
	}
	if o.Mechanism != "" {
		candidates = slices.DeleteFunc(candidates, func(w way) bool { return w.info.Mechanism != o.Mechanism })
	}
	if len(candidates) == 0 {
		return nil, fmt.Errorf("%w: method %q has no mechanism %q", ErrUnsupported, o.Method, o.Mechanism)
	}
	p, err := findProcs(&s)
	if err != nil {
		return nil, err
	}
	reasons := make([]string, 0, len(candidates))
	var last error
	for _, w := range candidates {
		provider, err := w.open(p, o, reasons)
		if err == nil {
			return provider, nil
		}
		reasons = append(reasons, w.info.Mechanism+": "+err.Error())
		last = err
	}
	// Several mechanisms may fail for the same reason: the message has the last reason only once.
	others := slices.DeleteFunc(slices.Clone(reasons), func(r string) bool {
		return strings.HasSuffix(r, ": "+last.Error())
	})
	if len(others) > 0 {
		last = fmt.Errorf("%w (before it, %s)", last, strings.Join(others, "; "))
	}
	if !errors.Is(last, os.ErrPermission) && !errors.Is(last, ErrServerGone) {
		last = fmt.Errorf("%w: %w", ErrUnsupported, last)
	}
	return nil, last
}

func (w way) open(p *procs, o Options, reasons []string) (Provider, error) {
	info := w.info
	info.Reasons, info.Unreachable = reasons, p.unreachable
	if info.Method == Sampled {
		return openPoller(p, info, o)
	}
	if err := usable(w.hooks); err != nil {
		return nil, err
	}
	return openKernel(p, w.hooks, info, o)
}

// usable returns why the figures of BPF programs at these hooks would be wrong on this host; nil if they would be right.
func usable(hooks hooks) error {
	if err := bpf.HostPIDs(); err != nil {
		return &impossible{err}
	}
	if hooks == atFunctions {
		facts := readPreemptFacts()
		return facts.preemption().skipsPrograms()
	}
	return nil
}

// A Possibility says whether this host allows a mechanism.
type Possibility struct {
	Info
	// Err is the reason why the host does not allow the mechanism; nil if it does.
	Err error
	// Uring is the reason why the host does not allow the mechanism for servers that may use io_uring: PostgreSQL 18
	// and later. If Err is not nil, this is not tested, and Uring is nil.
	Uring error
}

// Possibilities tries for a moment every mechanism that needs BPF programs, without timing any process. The result also has
// polling, which always works.
func Possibilities() []Possibility {
	ways := []way{fentry, tracepoints, switches}
	all := make([]Possibility, 0, len(ways)+1)
	for _, w := range ways {
		p := Possibility{Info: w.info, Err: usable(w.hooks)}
		if p.Err == nil {
			p.Err = try(w.hooks, false)
		}
		if p.Err == nil {
			p.Uring = try(w.hooks, true)
		}
		all = append(all, p)
	}
	return append(all, Possibility{Info: polling.info})
}
