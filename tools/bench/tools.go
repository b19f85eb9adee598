package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// turn is the measurement of a tool in one turn at a target.
type turn struct {
	Count   int      // captures
	Seconds float64  // their duration; 0 if the tool does not report it
	Pause   summary  // time for which the target was stopped, from the moment when the tool knows of the stop
	Window  *summary // the same from the request of the stop; nil if the tool does not report it
	Call    summary  // the whole capture, or of a program that makes but one: start to exit
	Depth   int      // frames; 0 if the tool does not report it
	Parts   map[string]summary
}

// tool is one of the compared tools. It is run count times on pid in a turn.
type tool struct {
	Name   string
	Call   string // meaning of the figure "call"
	Absent string // why it cannot run here; then run is nil
	run    func(ctx context.Context, pid int) (turn, error)
}

// firstCaptures is how many of our first captures do not count. The worker runs for months, and the cost of a
// program's start has a separate line.
const firstCaptures = 50

const (
	ours          = "pg_stat_backtrace"
	floor         = "C floor"
	callOneOfMany = "one capture of a running program"
	callProgram   = "the program, start to exit"
)

func tools(o options, p programs) []tool {
	repeat := strconv.Itoa(o.Captures)
	interval := strconv.FormatInt(o.Interval.Microseconds(), 10)
	list := []tool{
		{Name: floor, Call: callOneOfMany, run: func(ctx context.Context, pid int) (turn, error) {
			return decode(command(ctx, p.path["floor"], repeat, interval, strconv.Itoa(pid)))
		}},
		{Name: ours, Call: callOneOfMany, run: func(ctx context.Context, pid int) (turn, error) {
			return decode(command(ctx, o.Binary, "capture", "--stop", "--repeat", repeat, "--interval", o.Interval.String(),
				"--stats", "--warm-up", strconv.Itoa(firstCaptures), strconv.Itoa(pid)))
		}},
		{Name: "libunwind", Call: callOneOfMany, Absent: p.absent["libunwind"],
			run: func(ctx context.Context, pid int) (turn, error) {
				fewer := strconv.Itoa(max(1, o.Captures/4))
				return decode(command(ctx, p.path["libunwind"], fewer, interval, strconv.Itoa(pid)))
			}},
		{Name: ours + " capture", Call: callProgram, run: func(ctx context.Context, pid int) (turn, error) {
			return timed(5, 0, func() *exec.Cmd { return command(ctx, o.Binary, "capture", "--stop", strconv.Itoa(pid)) })
		}},
		// Like the other tools, without source lines.
		{Name: "… no lines", Call: callProgram, run: func(ctx context.Context, pid int) (turn, error) {
			return timed(5, 0, func() *exec.Cmd {
				return command(ctx, o.Binary, "capture", "--stop", "--debug-dir", os.DevNull, strconv.Itoa(pid))
			})
		}},
	}
	preload := p.path["ptracetime"]
	return append(list,
		foreign{name: "tbstack", calls: 5}.tool(preload),
		foreign{name: "eu-stack", calls: 5, arguments: []string{"-p"}, incomplete: 1}.tool(preload),
		foreign{name: "gdb", calls: 1, arguments: []string{"-nx", "-batch", "-ex", "bt", "-p"}}.tool(preload))
}

// decode runs a program that prints its measurements as JSON.
func decode(c *exec.Cmd) (turn, error) {
	out, err := output(c)
	if err != nil {
		return turn{}, err
	}
	return measurements(c, out)
}

// measurements reads them from JSON.
func measurements(c *exec.Cmd, out []byte) (turn, error) {
	var printed struct {
		Count int      `json:"count"`
		Secs  float64  `json:"seconds"`
		Pause summary  `json:"pause_us"`
		Held  *summary `json:"held_us"`
		Wind  *summary `json:"window_us"`
		Call  *summary `json:"call_us"`
		Total *summary `json:"total_us"`
		Unw   *summary `json:"unwind_us"`
		Sym   *summary `json:"symbolize_us"`
		Ctx   *summary `json:"context_us"`
		Depth int      `json:"depth"`
	}
	if err := json.Unmarshal(out, &printed); err != nil {
		return turn{}, fmt.Errorf("%s printed %q: %w", filepath.Base(c.Path), out, err)
	}
	t := turn{Count: printed.Count, Seconds: printed.Secs, Pause: printed.Pause, Window: printed.Wind,
		Depth: printed.Depth}
	if printed.Held != nil {
		// Our pause is an upper bound, from the last moment before the stop was known. The pause of other tools
		// begins when they know of the stop.
		t.Pause, t.Window = *printed.Held, &printed.Pause
	}
	switch {
	case printed.Call != nil:
		t.Call = *printed.Call
	case printed.Total != nil:
		t.Call = *printed.Total
	}
	if printed.Unw != nil && printed.Sym != nil && printed.Ctx != nil {
		t.Parts = map[string]summary{"unwind": *printed.Unw, "symbolize": *printed.Sym, "context": *printed.Ctx}
	}
	return t, nil
}

// timed runs a program that makes one capture, several times. Exit status ok is a success like 0.
func timed(calls, ok int, program func() *exec.Cmd) (turn, error) {
	spans := make([]float64, 0, calls)
	for range calls {
		start := time.Now()
		if _, err := output(program()); err != nil && !exited(err, ok) {
			return turn{}, err
		}
		spans = append(spans, float64(time.Since(start).Nanoseconds())/1000)
	}
	return turn{Count: calls, Call: summarize(spans)}, nil
}

// foreign is a program without support for this benchmark. ptracetime.so intercepts its ptrace() and measures the
// pause.
type foreign struct {
	name       string
	calls      int // per turn
	arguments  []string
	incomplete int // exit status for a possibly incomplete stack, 0 if there is none
}

func (f foreign) tool(preload string) tool {
	t := tool{Name: f.name, Call: callProgram}
	path := os.Getenv(strings.ToUpper(f.name)) // TBSTACK and similar: the program's path if it is not in PATH
	var err error
	if path == "" {
		path, err = exec.LookPath(f.name)
	}
	if err != nil {
		t.Absent = "not installed"
		return t
	}
	t.run = func(ctx context.Context, pid int) (turn, error) {
		log := filepath.Join(filepath.Dir(preload), "ptrace.log")
		if err := os.Remove(log); err != nil && !errors.Is(err, os.ErrNotExist) {
			return turn{}, fmt.Errorf("old measurement: %w", err)
		}
		measured, err := timed(f.calls, f.incomplete, func() *exec.Cmd {
			c := command(ctx, path, append(slices.Clone(f.arguments), strconv.Itoa(pid))...)
			c.Env = append(c.Env, "LD_PRELOAD="+preload, "BENCH_PTRACE_LOG="+log, "BENCH_PID="+strconv.Itoa(pid),
				"DEBUGINFOD_URLS=")
			return c
		})
		if err != nil {
			return turn{}, err
		}
		err = readPauses(log, &measured)
		return measured, err
	}
	return t
}

// readPauses reads the pauses that ptracetime.so wrote.
func readPauses(log string, t *turn) error {
	file, err := os.Open(log)
	if err != nil {
		return fmt.Errorf("no pause was measured: %w", err)
	}
	defer func() { _ = file.Close() }()
	var pauses, windows []float64
	for {
		var pause, window int64
		if n, err := fmt.Fscanln(file, &pause, &window); n != 2 || err != nil {
			break
		}
		pauses = append(pauses, float64(pause)/1000)
		windows = append(windows, float64(window)/1000)
	}
	if len(pauses) == 0 {
		return errors.New("no pause was measured")
	}
	window := summarize(windows)
	t.Pause, t.Window = summarize(pauses), &window
	return nil
}
