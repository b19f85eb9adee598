package ptrace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestTracerOutsideNamespace captures a process whose tracer is outside of the PID namespace. The kernel does not show
// such a tracer.
func TestTracerOutsideNamespace(t *testing.T) {
	if targetProgram == "" {
		t.Skip("no gcc to compile testdata/target.c with")
	}
	arguments := []string{"--pid", "--fork", "--kill-child", "--mount-proc"}
	if out, err := exec.Command("unshare", append(arguments, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no PID namespace: %v: %s", err, out)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", append(arguments, program, targetProgram)...)
	cmd.Env = append(os.Environ(), roleVariable+"=namespace")
	inside := startChild(t, cmd)
	first := childOf(t, inside.pid)
	target := childOf(t, first)
	startTarget(t, "tracer", strconv.Itoa(target))
	if _, err := inside.stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if text := inside.line(t); text != "ok" {
			t.Error(text)
		}
	}
}

// childOf returns the only child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	children, err := process.Children(pid) // of all threads: any thread of a Go program may have started it
	if err != nil {
		t.Fatal(err)
	}
	if len(children) != 1 {
		t.Fatalf("process %d has the children %v", pid, children)
	}
	return children[0]
}

// namespaceRole starts a target, waits for a line, and captures the target with and without a stop.
func namespaceRole(args []string) int {
	target := exec.Command(args[0], "sleep")
	out, err1 := target.StdoutPipe()
	err := errors.Join(err1, target.Start())
	if err != nil {
		sayOutcome(err)
		return 1
	}
	_, _ = bufio.NewReader(out).ReadString('\n')
	os.Stdout.WriteString("ready\n")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	_, err = Capture(context.Background(), anyTarget(target.Process.Pid), snapshot.Options{})
	var traced *process.TracedError
	if errors.As(err, &traced) && traced.Tracer == 0 && strings.Contains(err.Error(), "another PID namespace") {
		err = nil
	} else {
		err = fmt.Errorf("not ErrTraced: %s", errorText(err))
	}
	sayOutcome(err)
	_, err = observe.Observe(context.Background(), anyTarget(target.Process.Pid), snapshot.Options{})
	sayOutcome(err)
	return 0
}

// sayOutcome prints whether there was an error, on one line.
func sayOutcome(err error) {
	text := "ok"
	if err != nil {
		text = err.Error()
	}
	os.Stdout.WriteString(strings.ReplaceAll(text, "\n", " ") + "\n")
}
