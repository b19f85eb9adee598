package capture_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
)

// bareFlags are compiler flags for code without call frame information and frame pointers.
func bareFlags() []string {
	return []string{"-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"}
}

// TestKnownStacksOfBareCode checks the stacks of known functions without call frame information and without frame
// pointers. Among them are signal handlers on their own stack.
func TestKnownStacksOfBareCode(t *testing.T) {
	t.Parallel()
	checkKnownStacks(t, build(t, bareFlags()...))
}

// TestBareSpin captures a program that consists only of such functions, has no C library, and spins in a signal
// handler.
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
			target := process.Target{PID: cmd.Process.Pid, UID: -1}
			spins := false // at first the program has not reached the handler yet
			for deadline := time.Now().Add(3 * time.Minute); !spins; {
				tr, err := c.Capture(t.Context(), target, capture.Options{Deadline: pgtest.Patience})
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

// TestConstructor captures a process in a library's constructor, before its program starts, with and without call
// frame information. The stack must be complete and end where the dynamic linker begins.
func TestConstructor(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"described": nil, "bare": bareFlags()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			library := compile(t, "testdata/constructor.c", slices.Concat(flags, []string{"-shared", "-fPIC"})...)
			cmd := exec.Command("/bin/true")
			cmd.Env = append(cmd.Environ(), "LD_PRELOAD="+library)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			c := capturer(t)
			for deadline := time.Now().Add(3 * time.Minute); ; {
				th := take(t, c, cmd.Process.Pid, capture.Options{})
				if th.Frames[0].Name() != "inside" && time.Now().Before(deadline) {
					continue // the program has not reached the constructor yet
				}
				last := th.Frames[len(th.Frames)-1]
				if !th.Whole || len(th.Frames) < 5 || th.Frames[1].Name() != "spin" || !strings.HasPrefix(last.Module, "ld") {
					t.Errorf("%q, at last in %s, %s", names(&th), last.Module, th.Stop)
				}
				return
			}
		})
	}
}
