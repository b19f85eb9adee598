package capture_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// dumped is a goroutine in the text that Go prints at SIGQUIT.
type dumped struct {
	state   string
	frames  []string
	creator string
}

var goroutineHeader = regexp.MustCompile(`(?m)^goroutine ([0-9]+)(?: gp=\S+ m=\S+(?: mp=\S+)?)? \[([^\]]*)\]:\n`)

// parseDump reads the goroutines of a dump. The goroutine of the system stack has no number and counts as 0.
func parseDump(t *testing.T, dump string) map[uint64]dumped {
	t.Helper()
	out := make(map[uint64]dumped)
	for part := range strings.SplitSeq(dump, "\n\n") {
		m := goroutineHeader.FindStringSubmatchIndex(part)
		if m == nil {
			continue
		}
		id, err := strconv.ParseUint(part[m[2]:m[3]], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		d := dumped{state: part[m[4]:m[5]]}
		for line := range strings.SplitSeq(part[m[1]:], "\n") {
			switch creator, made := strings.CutPrefix(line, "created by "); {
			case strings.HasPrefix(line, "\t") || line == "":
			case made:
				d.creator, _, _ = strings.Cut(creator, " in goroutine ")
			case strings.Contains(line, "("):
				name := line[:callEnd(line)]
				if name == "panic" {
					name = "runtime.gopanic"
				}
				d.frames = append(d.frames, name)
			}
		}
		if id != 0 {
			out[id] = d
		}
	}
	return out
}

// callEnd is where the function's name ends in a line such as main.(*waiter).wait(0x1, {0x2}).
func callEnd(line string) int {
	depth := 0
	for i := len(line) - 1; i > 0; i-- {
		switch line[i] {
		case ')':
			depth++
		case '(':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(line)
}

var typeArguments = regexp.MustCompile(`\[[^\]]*\]`)

// goNames are the names of a stack's functions, as Go has them.
func goNames(th *backtrace.Thread) []string {
	var out []string
	for i := range th.Frames {
		name := strings.TrimSuffix(th.Frames[i].Function, ".abi0")
		out = append(out, typeArguments.ReplaceAllString(name, "[...]"))
	}
	return out
}

// startGo starts a Go program, and waits until it reads its standard input. When SIGQUIT ends the program, it prints
// all goroutines into the returned buffer.
func startGo(t *testing.T, exe string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(exe, args...)
	return cmd, startReading(t, cmd)
}

// startReading does the work of startGo for a given command.
func startReading(t *testing.T, cmd *exec.Cmd) *bytes.Buffer {
	t.Helper()
	dump := startDumping(t, cmd)
	awaitAny(t, cmd.Process.Pid, fmt.Sprintf("%d 0x0 ", syscall.SYS_READ))
	return dump
}

// startDumping starts a Go program. When SIGQUIT ends the program, it prints all goroutines into the returned buffer.
func startDumping(t *testing.T, cmd *exec.Cmd) *bytes.Buffer {
	t.Helper()
	cmd.Env = append(append(os.Environ(), "GOTRACEBACK=system"), cmd.Env...)
	dump := new(bytes.Buffer)
	cmd.Stderr = dump
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return dump
}

// awaitAny waits until a thread of the process is in a system call, as /proc shows it.
func awaitAny(t *testing.T, pid int, want string) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		for _, task := range tasks {
			if got, _ := os.ReadFile(task); strings.HasPrefix(string(got), want) {
				return
			}
		}
	}
	t.Fatalf("process %d does not get to system call %s", pid, want)
}

// TestGoroutines checks that the goroutines of a program and their stacks equal those that the program prints.
func TestGoroutines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		flags []string
	}{
		{"debugging information", nil},
		{"stripped", []string{"-ldflags=-s -w"}},
		{"stripped, position-independent", []string{"-ldflags=-s -w", "-buildmode=pie"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.name, "position") && !pgtest.Full() {
				t.Skip("without PGSB_TEST_FULL=1: it takes a build of Go's own library")
			}
			exe := buildGoProgram(t, "goroutines", "0", tt.flags...)
			compareGoroutines(t, exe, "spin")
			if tt.flags == nil {
				compareLayout(t, exe, runtime.Version())
			}
		})
	}
}

// TestGoroutinesInPIDNamespace checks that the threads of running goroutines are found if the program runs in another
// PID namespace. Go's runtime has the threads' ids of that namespace.
func TestGoroutinesInPIDNamespace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a PID namespace")
	}
	cmd := exec.Command(buildGoProgram(t, "goroutines", "0"), "spin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	startReading(t, cmd)
	pid := cmd.Process.Pid
	c := patient(t, capture.Config{})
	pgtest.Wait(t, "a running goroutine", func() bool {
		tr, err := c.Goroutines(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
		if err != nil {
			t.Fatal(err)
		}
		running := false
		for i := range tr.Goroutines {
			g := &tr.Goroutines[i]
			if g.TID == 0 {
				continue
			}
			running = running || g.Status == "running"
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, g.TID)); err != nil || g.Name == "" || len(g.Frames) == 0 {
				t.Errorf("goroutine %d [%s] on thread %d %q: %q, %s", g.ID, g.Status, g.TID, g.Name, goNames(&g.Thread), g.Stop)
			}
		}
		return running
	})
}

// TestBusyGoroutines captures the goroutines of a busy program at random times. Every stack must end with the
// function to which a goroutine returns. Exceptions are goroutines whose thread is switching stacks, and goroutines
// that got another stack between the lookup and the copy. The shares are printed.
func TestBusyGoroutines(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a build of Go's own library: not with -short")
	}
	cmd := exec.Command(buildGoProgram(t, "gobusy", "0", "-ldflags=-s -w"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := patient(t, capture.Config{})
	rounds := 15
	if os.Getenv("PGSB_ORACLE_SLOW") != "" {
		rounds = 1000
	}
	ends := make(map[string]int)
	crossed := map[string]int{
		"runtime.systemstack": 0, "runtime.morestack": 0, "runtime.sigtramp": 0, "runtime.asyncPreempt": 0,
	}
	var all, whole int
	var longest time.Duration
	pgtest.Wait(t, "the program to begin", func() bool {
		tr, err := c.Goroutines(t.Context(), process.Target{PID: cmd.Process.Pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
		return err == nil && len(tr.Goroutines) > 10
	})
	for range rounds {
		tr, err := c.Goroutines(t.Context(), process.Target{PID: cmd.Process.Pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, tr.Pause)
		for i := range tr.Goroutines {
			g := &tr.Goroutines[i]
			all++
			names := goNames(&g.Thread)
			stop, _, _ := strings.Cut(g.Stop, " at 0x")
			switch {
			case g.Whole && names[len(names)-1] == "runtime.goexit":
				whole++
				for name := range crossed {
					if slices.Contains(names, name) {
						crossed[name]++
					}
				}
				continue
			case stop == "switch of stacks that cannot be followed", stop == "stack memory not in the snapshot":
			case g.Status == "running" || g.Status == "runnable":
				// Its thread is the scheduler's already, or still.
			default:
				t.Errorf("goroutine %d [%s] ends with %s: %q", g.ID, g.Status, g.Stop, names)
			}
			ends[stop]++
			if slices.ContainsFunc(g.Frames, func(f backtrace.Frame) bool {
				return f.Function == "" && f.Module != "[vdso]" // whose static functions have no symbols
			}) {
				t.Errorf("goroutine %d has a frame without a name: %q", g.ID, names)
			}
		}
	}
	figure.Printf(t, "%d of %d stacks (%.2f %%) whole, through %v, others: %v; %d stops, the longest of %s", whole, all,
		100*float64(whole)/float64(all), crossed, ends, rounds, longest)
	if whole*10 < all*9 {
		t.Error("too few are whole")
	}
}

// compareLayout compares the offsets that are known for a version of Go with those in a program's debugging
// information.
func compareLayout(t *testing.T, exe, version string) {
	t.Helper()
	f, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := elfimage.Open(f, exe)
	if err != nil {
		t.Fatal(err)
	}
	got, err := golang.LayoutOf(version)
	if err != nil {
		t.Fatal(err)
	}
	want, err := golang.LayoutFrom(img)
	if err != nil || got != want {
		t.Errorf("%s: %+v, its debugging information has %+v, %v", version, got, want, err)
	}
}

// compareGoroutines compares a program's goroutines with its output.
func compareGoroutines(t *testing.T, exe string, args ...string) {
	t.Helper()
	cmd, dump := startGo(t, exe, args...)
	compareRunning(t, cmd, dump)
}

// compareRunning compares the goroutines of an idle program with its output.
func compareRunning(t *testing.T, cmd *exec.Cmd, dump *bytes.Buffer) {
	t.Helper()
	tr, err := patient(t, capture.Config{}).Goroutines(t.Context(), process.Target{PID: cmd.Process.Pid, UID: -1},
		capture.Options{MaxFrames: 5000, Deadline: pgtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	compareWithDump(t, tr, dump)
}

// compareWithDump compares goroutines with the dump that their idle program has printed at its end.
func compareWithDump(t *testing.T, tr *backtrace.Trace, dump *bytes.Buffer) {
	t.Helper()
	want := parseDump(t, dump.String())
	got := make(map[uint64]bool)
	frames, waits := 0, 0
	for i := range tr.Goroutines {
		g := &tr.Goroutines[i]
		d, ok := want[g.ID]
		got[g.ID] = true
		if !ok {
			t.Errorf("goroutine %d [%s] is not in the dump", g.ID, g.Status)
			continue
		}
		frames += len(g.Frames)
		waits += compareGoroutine(t, g, &d)
	}
	for id, d := range want {
		if !got[id] {
			t.Errorf("goroutine %d [%s] %q was not found", id, d.state, d.frames)
		}
	}
	if len(got) < 4 || waits < 3 {
		t.Errorf("only %d goroutines, %d waiting\n%s", len(got), waits, dump)
	}
	figure.Printf(t, "%s: %d goroutines of %d in the dump, %d of them waiting, with %d frames, in a stop of %s",
		tr.Go, len(got), len(want), waits, frames, tr.Pause)
}

// compareGoroutine compares one goroutine. It returns 1 if the goroutine waits, otherwise 0.
func compareGoroutine(t *testing.T, g *backtrace.Goroutine, d *dumped) int {
	t.Helper()
	state, _, locked := strings.Cut(d.state, ", locked to thread")
	state, _, _ = strings.Cut(state, ",")
	if g.Status != state && g.Status != "running" && g.Status != "runnable" {
		t.Errorf("goroutine %d is [%s], not [%s]", g.ID, g.Status, state)
	}
	if g.Locked != locked {
		t.Errorf("goroutine %d is locked: %t, not %t", g.ID, g.Locked, locked)
	}
	if creator := typeArguments.ReplaceAllString(g.Creator, "[...]"); d.creator != "" && creator != d.creator {
		t.Errorf("goroutine %d was created by %s, not %s", g.ID, creator, d.creator)
	}
	names := goNames(&g.Thread)
	ends := g.Whole && len(names) > 0 && names[len(names)-1] == "runtime.goexit"
	if !ends && g.Status != "running" { // its thread may be in the scheduler
		t.Errorf("goroutine %d [%s] ends with %s: %q", g.ID, g.Status, g.Stop, names)
	}
	if g.Status != state || state == "running" || state == "runnable" {
		return 0
	}
	// Go leaves out the callers of the function that makes the system call, and the middle of more than a hundred
	// frames.
	if over := len(names) - len(d.frames); over > 0 && state == "syscall" {
		names = names[over:]
	}
	if len(names) > 100 {
		// Go before 1.21 prints the innermost hundred, and does not count inlined ones.
		if n := len(d.frames); n >= 100 && n < len(names) && slices.Equal(names[:n], d.frames) {
			return 1
		}
		names = slices.Concat(names[:50], names[len(names)-50:])
	}
	if !slices.Equal(names, d.frames) {
		t.Errorf("goroutine %d [%s]\n got %q\nwant %q", g.ID, g.Status, names, d.frames)
	}
	return 1
}
