package functrace_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/measure/functrace"
)

// goProgram is a running program of testdata/calls.
type goProgram struct {
	pid int
	// call has it make its calls, and returns when they are done.
	call func()
}

// rounds and depth are how often the program calls its chain of functions, and how deep grow calls itself each time.
const (
	rounds = 30
	depth  = 200
)

// buildCalls builds testdata/calls, with a tool chain if one is named.
func buildCalls(t *testing.T, toolchain string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile(filepath.Join("testdata", "calls", "main.go"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.go"), source, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module calls\n\ngo 1.18\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "calls")
	cmd := exec.Command("go", append(append([]string{"build", "-o", exe}, flags...), ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if toolchain != "" {
		cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+toolchain)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return exe
}

// startCalls starts the program.
func startCalls(t *testing.T, exe string) goProgram {
	t.Helper()
	cmd := exec.Command(exe, strconv.Itoa(rounds), strconv.Itoa(depth))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	expect := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); strings.TrimSpace(line) != want {
			t.Fatalf("the program prints %q (%v), not %q", line, err, want)
		}
	}
	expect("ready")
	return goProgram{pid: cmd.Process.Pid, call: func() {
		t.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		expect("done")
	}}
}

func TestGo(t *testing.T) {
	needProbes(t)
	for _, c := range []struct {
		name  string
		flags []string
	}{
		{"symbols", nil}, {"stripped", []string{"-ldflags=-s -w"}}, {"position-independent", []string{"-buildmode=pie"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "position-independent" && !pgtest.Full() {
				t.Skip("without PGSB_TEST_FULL=1: it takes a build of Go's own library")
			}
			checkGo(t, buildCalls(t, "", c.flags...))
		})
	}
}

// TestGoVersions traces programs that were built by other versions of Go; see checkGo.
func TestGoVersions(t *testing.T) {
	toolchains, _ := figure.GoPrograms(t)
	needProbes(t)
	for _, version := range toolchains {
		t.Run(version, func(t *testing.T) {
			checkGo(t, buildCalls(t, version))
			checkGo(t, buildCalls(t, version, "-ldflags=-s -w"))
		})
	}
}

// checkGo: every call is one hit though stacks grow, and stacks have the inlined calls with their lines.
func checkGo(t *testing.T, exe string) {
	t.Helper()
	p := startCalls(t, exe)
	tracer := open(t, functrace.Options{
		Functions: []string{"main.not_inlined", "main.grow"}, PIDs: []int{p.pid}, StacksPerSecond: 1_000_000,
	})
	chains := make(map[string]int)
	r := during(t, tracer, func(e *functrace.Event) error {
		if e.Traced.Name == "main.not_inlined" {
			text, err := json.Marshal(e.JSON())
			chains[string(text)]++
			return err
		}
		return nil
	}, p.call)
	tracer.Close()
	checkSums(t, r)
	if n := r.Functions[0].Total().Hits; n != rounds {
		t.Errorf("main.not_inlined: %d hits for %d calls", n, rounds)
	}
	if n := r.Functions[1].Total().Hits; n != rounds*(depth+1) {
		t.Errorf("main.grow: %d hits for %d calls", n, rounds*(depth+1))
	}
	for _, s := range r.Functions[1].Stacks {
		if !s.Thread.Whole {
			t.Errorf("a stack ends early (%s): %s", s.Thread.Stop, frames(&s))
			break
		}
	}
	if len(chains) != 1 {
		t.Errorf("%d different stacks of one call: %v", len(chains), chains)
	}
	for text := range chains {
		checkChain(t, text, p.pid)
	}
}

// checkChain verifies the form and the lines of a stack that leads to not_inlined.
func checkChain(t *testing.T, text string, pid int) {
	t.Helper()
	var e functrace.JSONEvent
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join("testdata", "calls", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	// lineOf is the line of a call, behind the line of the function that makes it.
	lineOf := func(function, call string) int {
		inside := false
		for i, line := range strings.Split(string(source), "\n") {
			inside = inside || strings.HasPrefix(line, "func "+function+"(")
			if inside && strings.TrimSpace(line) == call+"()" {
				return i + 1
			}
		}
		t.Fatalf("%s does not call %s", function, call)
		return 0
	}
	want := []string{
		"main.inline_me_3 (%s:" + strconv.Itoa(lineOf("inline_me_3", "not_inlined")) +
			") [inlined in main.call_inlined_func_chain]",
		"main.inline_me_2 (%s:" + strconv.Itoa(lineOf("inline_me_2", "inline_me_3")) +
			") [inlined in main.call_inlined_func_chain]",
		"main.inline_me_1 (%s:" + strconv.Itoa(lineOf("inline_me_1", "inline_me_2")) +
			") [inlined in main.call_inlined_func_chain]",
		"main.call_inlined_func_chain (%s:" + strconv.Itoa(lineOf("call_inlined_func_chain", "inline_me_1")) + ")",
		"main.main (%s:" + strconv.Itoa(lineOf("main", "call_inlined_func_chain")) + ")",
	}
	var got []string
	for _, frame := range e.Stack {
		start, end := strings.Index(frame, "("), strings.LastIndex(frame, "main.go:")
		if start < 0 || end < start {
			got = append(got, frame)
			continue
		}
		got = append(got, frame[:start+1]+"%s"+frame[end+len("main.go"):])
	}
	if !slices.Equal(got, want) || e.PID != pid || e.UID != os.Getuid() || e.Probe != "main.not_inlined" {
		t.Errorf("event %s, and its stack is not %q", text, want)
	}
}

// TestGoRefusals: probes of returns, which would crash a Go program, and functions that are inlined everywhere.
func TestGoRefusals(t *testing.T) {
	t.Parallel()
	p := startCalls(t, buildCalls(t, ""))
	for _, c := range []struct {
		name  string
		calls bool
		want  string
	}{
		{"main.not_inlined", true, "would crash the program"},
		{"main.inline_me_2", false, "put it inline at every call"},
		{"inline_me_2", false, "put it inline at every call"},
		{"main.none", false, "no function of that name"},
	} {
		_, err := functrace.New(newCapturer(t), functrace.Options{
			Functions: []string{c.name}, PIDs: []int{p.pid}, Calls: c.calls,
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", c.name, err, c.want)
		}
	}
}

// TestDeletedAndReplaced: functions of a program whose file was deleted, or replaced by another one, can be traced.
func TestDeletedAndReplaced(t *testing.T) {
	needProbes(t)
	for _, replaced := range []bool{false, true} {
		exe := buildCalls(t, "")
		p := startCalls(t, exe)
		err := os.Remove(exe)
		if err == nil && replaced {
			err = os.WriteFile(exe, []byte("something else"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		tracer := open(t, functrace.Options{Functions: []string{"main.not_inlined"}, PIDs: []int{p.pid}})
		r := during(t, tracer, nil, p.call)
		tracer.Close()
		checkSums(t, r)
		if n := r.Functions[0].Total().Hits; n != rounds {
			t.Errorf("replaced %t: %d hits for %d calls", replaced, n, rounds)
		}
		if s := r.Functions[0].Stacks; len(s) != 1 || !strings.Contains(frames(&s[0]), "main.call_inlined_func_chain") {
			t.Errorf("replaced %t: %s", replaced, stacks(&r.Functions[0]))
		}
	}
}

// TestGoArguments: integers and strings by Go's ABI.
func TestGoArguments(t *testing.T) {
	needProbes(t)
	p := startCalls(t, buildCalls(t, ""))
	arguments, err := functrace.ParseArguments("1:d,2:s")
	if err != nil {
		t.Fatal(err)
	}
	conditions, err := functrace.ParseConditions(fmt.Sprintf("arg1>=%d", depth-1))
	if err != nil {
		t.Fatal(err)
	}
	tracer := open(t, functrace.Options{
		Functions: []string{"main.grow"}, PIDs: []int{p.pid}, Arguments: arguments, Conditions: conditions,
	})
	r := during(t, tracer, nil, p.call)
	f := &r.Functions[0]
	if sum := f.Total(); sum.Hits != 2*rounds || sum.Failed != rounds*(depth-1) {
		t.Errorf("%+v", sum)
	}
	for _, s := range f.Stacks {
		if s.Arguments != fmt.Sprintf(`arg1=%d arg2="some text"`, depth) &&
			s.Arguments != fmt.Sprintf(`arg1=%d arg2="some text"`, depth-1) {
			t.Errorf("arguments %s", s.Arguments)
		}
	}
}
