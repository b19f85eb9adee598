package functrace_test

import (
	"bufio"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/measure/functrace"
)

// TestKnownChains traces functions of a program that knows its return addresses. Hits must equal calls, and each stack
// the addresses that the program has noted. A leaf function of aarch64 has its return address in a register only.
func TestKnownChains(t *testing.T) {
	needProbes(t)
	variants := map[string][]string{
		"call frame information": {"-fomit-frame-pointer"},
		"frame pointers only": {
			"-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables",
		},
	}
	if runtime.GOARCH == "arm64" {
		variants["signed return addresses"] = []string{"-fomit-frame-pointer", "-mbranch-protection=standard"}
	}
	for name, flags := range variants {
		t.Run(name, func(t *testing.T) { traceChains(t, flags) })
	}
}

// traceChains compiles the program, traces it and compares the stacks.
func traceChains(t *testing.T, flags []string) {
	const rounds = 200
	exe := filepath.Join(t.TempDir(), "chain")
	arguments := append([]string{"-O2", "-static", "-o", exe, "testdata/chain.c"}, flags...)
	if out, err := exec.Command("gcc", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid, next := startChain(t, exe, rounds)
	want := make(map[string]int)
	for _, line := range next() {
		want[line] = rounds
	}
	if len(want) != 5 {
		t.Fatalf("the program has printed %d chains: %v", len(want), want)
	}
	functions := []string{"leaf", "middle", "target", "framed"}
	tracer := open(t, functrace.Options{Functions: functions, PIDs: []int{pid}, StacksPerSecond: 1_000_000})
	got := make(map[string]int)
	r := during(t, tracer, func(e *functrace.Event) error {
		if !e.Thread.Whole {
			t.Errorf("a stack of %s ends early: %s", e.Traced.Function, e.Thread.Stop)
		}
		key, caller := []string{e.Traced.Function}, ""
		for _, f := range e.Thread.Frames[1:] {
			key = append(key, strconv.FormatUint(f.Address, 16))
			if caller == "chains" { // this is main, which called it
				break
			}
			caller = f.Function
		}
		got[strings.Join(key, " ")]++
		return nil
	}, func() { next() })
	checkSums(t, r)
	for i := range r.Functions {
		f := &r.Functions[i]
		calls := rounds
		if f.Name == "leaf" {
			calls *= 2
		}
		if sum := f.Total(); sum.Hits != uint64(calls) || sum.Stacks != sum.Hits {
			t.Errorf("%s: %d calls, %+v", f.Name, calls, sum)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("stacks by the trace:\n%s\nby the program:\n%s", listed(got), listed(want))
	}
}

// TestUntouchedFrame traces a function whose frame is not in memory yet, which a copy of the stack must leave out.
func TestUntouchedFrame(t *testing.T) {
	needProbes(t)
	const rounds = 20
	exe := filepath.Join(t.TempDir(), "room")
	arguments := []string{
		"-O2", "-static", "-fno-stack-clash-protection", "-fno-stack-protector", "-o", exe, "testdata/room.c",
	}
	if out, err := exec.Command("gcc", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid, next := startChain(t, exe, rounds)
	tracer := open(t, functrace.Options{Functions: []string{"reserve"}, PIDs: []int{pid}, StacksPerSecond: 1_000_000})
	r := during(t, tracer, func(e *functrace.Event) error {
		if frames := e.Thread.Frames; !e.Thread.Whole || len(frames) < 2 || frames[1].Function != "main" {
			t.Errorf("a stack ends early (%s): %+v", e.Thread.Stop, frames)
		}
		return nil
	}, func() { next() })
	checkSums(t, r)
	if sum := r.Functions[0].Total(); sum.Hits != rounds || sum.Stacks != rounds {
		t.Errorf("%d calls, %+v", rounds, sum)
	}
}

// TestDeepThread traces functions below 64 KiB of frames, on stacks whose end the kernel does not know.
func TestDeepThread(t *testing.T) {
	needProbes(t)
	const rounds, depth = 20, 64
	exe := filepath.Join(t.TempDir(), "thread")
	arguments := []string{"-O2", "-static", "-pthread", "-o", exe, "testdata/thread.c"}
	if out, err := exec.Command("gcc", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid, next := startChain(t, exe, rounds)
	functions := []string{"reached", "switched"}
	tracer := open(t, functrace.Options{Functions: functions, PIDs: []int{pid}, StacksPerSecond: 1_000_000})
	r := during(t, tracer, func(e *functrace.Event) error {
		if frames := e.Thread.Frames; !e.Thread.Whole || len(frames) <= depth {
			t.Errorf("a stack of %s ends early, after %d frames: %s", e.Traced.Function, len(frames), e.Thread.Stop)
		}
		return nil
	}, func() { next() })
	checkSums(t, r)
	for i := range r.Functions {
		if sum := r.Functions[i].Total(); sum.Hits != rounds || sum.Stacks != rounds {
			t.Errorf("%s: %d calls, %+v", r.Functions[i].Name, rounds, sum)
		}
	}
}

func listed(counts map[string]int) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		b.WriteString(strconv.Itoa(counts[key]) + " " + key + "\n")
	}
	return b.String()
}

// startChain starts the program. next lets it go on, and returns the lines that it prints until it is ready again.
func startChain(t *testing.T, exe string, rounds int) (pid int, next func() []string) {
	t.Helper()
	command := exec.Command(exe, strconv.Itoa(rounds))
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	lines := bufio.NewScanner(out)
	ready := func() (list []string) {
		for lines.Scan() && lines.Text() != "ready" {
			list = append(list, lines.Text())
		}
		return list
	}
	ready()
	return command.Process.Pid, func() []string {
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		return ready()
	}
}
