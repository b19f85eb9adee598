package capture_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/capture"
)

// bareFlags have a compiler make neither call frame information nor frame pointers.
func bareFlags() []string {
	return []string{"-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"}
}

// TestKnownStacksOfBareCode has the same of functions without call frame information and without frame pointers, which
// signal handlers on a stack of their own are among.
func TestKnownStacksOfBareCode(t *testing.T) {
	t.Parallel()
	checkKnownStacks(t, build(t, bareFlags()...))
}

// TestBareSpin has a program without a C library, of such functions alone, that spins in a signal handler.
func TestBareSpin(t *testing.T) {
	t.Parallel()
	const base = "no way to a return"
	want := coreStack[:len(coreStack)-1]
	for _, flags := range [][]string{nil, {"-DALTSTACK"}, {"-DDYNAMIC"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			t.Parallel()
			exe := compile(t, filepath.Join(coresDir, "src/stack.c"), slices.Concat(flags, bareFlags(), []string{
				"-O2", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector", "-DSPIN",
			})...)
			cmd := exec.Command(exe)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			c := capturer(t)
			target := ptrace.Target{PID: cmd.Process.Pid, UID: -1}
			spins := false // at first it is on its way there
			for deadline := time.Now().Add(time.Minute); !spins; {
				tr, err := c.Capture(t.Context(), target, capture.Options{})
				spins = err == nil && len(tr.Threads[0].Frames) == len(want)
				if !spins && time.Now().After(deadline) {
					t.Fatalf("%v, %+v", err, tr)
				}
			}
			for range 100 {
				th := take(t, c, target.PID, capture.Options{})
				got := names(&th)
				got[slices.Index(coreStack, "")] = ""
				if !slices.Equal(got, want) || !strings.Contains(th.Stop, base) {
					t.Fatalf("%q, %s", got, th.Stop)
				}
			}
		})
	}
}
