package capture_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// goStacksVariable sets how often each program is captured, and goStacksDefault is the default. Some 60 to 120 of the
// default's captures meet a growing stack. That is enough to distinguish an error rate of 10 % from 1 %, and those of a
// full run an error rate of 5 %.
const (
	goStacksVariable = "PGSB_GO_STACKS"
	goStacksDefault  = 300
	goStacksFull     = 500
)

// growing and calling are the calls of testdata/gogrow and testdata/cgobusy, innermost first, without Go's own.
var (
	growing = regexp.MustCompile(`^((main\.(nothing|tell) )?(main\.left )?(main\.right main\.left )*` +
		`main\.(grow|trace) |main\.(clock|allocate|interrupt) )?(main\.round )?(main\.main(\.func[12]|\.gowrap1)? )?$`)
	calling = regexp.MustCompile(`^(main\.work |main\._Cfunc_cWork |((main\.goDescend )?_cgoexp_\w+ )?` +
		`main\._Cfunc_cDescend )?(main\.descend main\.goDescend _cgoexp_\w+ main\._Cfunc_cDescend ){0,3}` +
		`(main\.descend )?main\.main $`)
)

// TestGoStacks captures programs whose threads are mostly on a special stack of Go's runtime, at random times. No
// stack may have a frame that the program's calls exclude. A stack that is growing must continue to the function that
// needs the space. The shares are printed.
func TestGoStacks(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes a build of Go's own library")
	}
	t.Run("a stack grows", func(t *testing.T) {
		checkGrowing(t, buildGoProgram(t, "gogrow", "0", "-ldflags=-s -w"))
	})
	t.Run("Go and C", func(t *testing.T) {
		needC(t)
		checkCalling(t, buildGoProgram(t, "cgobusy", "1", "-ldflags=-s -w"))
	})
}

// checkGrowing captures testdata/gogrow, where any thread may be the busy one.
func checkGrowing(t *testing.T, exe string) {
	t.Helper()
	got := captureBusy(t, exec.Command(exe), growing, capture.Options{AllThreads: true})
	got.check(t, "stacks that grow")
	if got.growing == 0 {
		t.Error("no stack was seen growing")
	}
}

// checkCalling captures testdata/cgobusy.
func checkCalling(t *testing.T, exe string) {
	t.Helper()
	got := captureBusy(t, exec.Command(exe), calling, capture.Options{})
	got.check(t, "between Go and C")
}

// idle are the functions at which the stacks of threads without a goroutine end.
var idle = []string{"runtime.mcall", "runtime.mstart", "runtime.rt0_go"}

// leavesGoroutine reports whether a function on a stack shows that the thread has left its goroutine. Such a goroutine
// did not ask for more stack.
func leavesGoroutine(name string) bool {
	return name == "runtime.gopreempt_m" || name == "runtime.preemptPark" || name == "runtime.schedule"
}

// goTally counts captures.
type goTally struct {
	stops, idle   int // stops, and threads in them without a goroutine
	all, whole    int // threads with a goroutine, and those of them with a whole stack
	growing, grew int // threads whose stack grows, and those of them followed to the goroutine
	crossed, ends map[string]int
	pause, held   time.Duration
}

// captureBusy starts a program and captures it.
func captureBusy(t *testing.T, cmd *exec.Cmd, calls *regexp.Regexp, o capture.Options) *goTally {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return captureRunning(t, patient(t, capture.Config{}), cmd.Process.Pid, calls, o)
}

// captureRunning captures a process as soon as it runs the program's Go code.
func captureRunning(
	t *testing.T, c *capture.Capturer, pid int, calls *regexp.Regexp, o capture.Options,
) *goTally {
	t.Helper()
	o.MaxFrames, o.Deadline = 5000, pgtest.Patience
	n := goStacksDefault
	if pgtest.Full() {
		n = goStacksFull
	}
	if text := os.Getenv(goStacksVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("%s is %q", goStacksVariable, text)
		}
	}
	target := process.Target{PID: pid, UID: -1}
	begun := regexp.MustCompile(`^main\.(descend|round|spin)$`)
	pgtest.Wait(t, "the program to begin", func() bool {
		tr, err := c.Capture(t.Context(), target, o)
		return err == nil && slices.ContainsFunc(tr.Threads, func(th backtrace.Thread) bool {
			return slices.ContainsFunc(goNames(&th), begun.MatchString)
		})
	})
	got := &goTally{crossed: make(map[string]int), ends: make(map[string]int)}
	for range n {
		tr, err := c.Capture(t.Context(), target, o)
		if err != nil {
			t.Fatal(err)
		}
		got.stops++
		got.pause += tr.Pause
		got.held += tr.Held
		for i := range tr.Threads {
			got.add(t, &tr.Threads[i], calls)
		}
	}
	return got
}

// add checks one stack and counts it.
func (g *goTally) add(t *testing.T, th *backtrace.Thread, calls *regexp.Regexp) {
	t.Helper()
	names := goNames(th)
	if len(names) == 0 {
		return // it ended meanwhile
	}
	for _, name := range []string{"systemstack", "morestack", "sigtramp", "asmcgocall", "cgocallback"} {
		if slices.Contains(names, "runtime."+name) {
			g.crossed[name]++
		}
	}
	if th.Whole && (slices.Contains(idle, names[len(names)-1]) || slices.ContainsFunc(names, leavesGoroutine)) {
		g.idle++
		return
	}
	g.all++
	if th.Whole {
		g.whole++
	} else {
		stop, _, _ := strings.Cut(th.Stop, " at 0x")
		g.ends[fmt.Sprintf("%s in %s", stop, names[len(names)-1])]++
	}
	var text strings.Builder
	for _, name := range names {
		if strings.HasPrefix(name, "main.") || strings.HasPrefix(name, "_cgoexp_") || name == "enter" ||
			name == "PostgresMain" {
			text.WriteString(name + " ")
		}
	}
	own := text.String()
	if th.Whole && !calls.MatchString(own) && names[0] != "main" { // of C, between two calls of Go
		t.Errorf("%q in %q", own, names)
	}
	if slices.Contains(names, "runtime.newstack") {
		g.growing++
		if names[len(names)-1] == "runtime.goexit" || calls.MatchString(own) && own != "" {
			g.grew++
		}
	}
}

// check prints the shares. A stack is not whole if the thread is at an instruction that moves the stack pointer, or
// that moves a goroutine to its new stack. It is not whole either while Go's runtime calls mmap of the C library, after a switch of
// stacks. Such a call can last for many stops, so these stacks do not count.
func (g *goTally) check(t *testing.T, what string) {
	t.Helper()
	figure.Printf(t, "%s: %d stops, %d threads without a goroutine; %d of %d stacks (%.2f %%) whole, through %v; %d of "+
		"%d where a stack grows go on to its goroutine; others: %v; mean stop %s, held %s", what, g.stops, g.idle, g.whole,
		g.all, 100*float64(g.whole)/float64(g.all), g.crossed, g.grew, g.growing, g.ends, g.pause/time.Duration(g.stops),
		g.held/time.Duration(g.stops))
	mapping := g.ends["switch of stacks that cannot be followed in runtime.callCgoMmap"]
	if g.all-g.whole-mapping > max(1, g.all/20) || g.growing-g.grew > max(1, g.growing/20) { // few stacks may grow
		t.Error("too few are whole")
	}
}
