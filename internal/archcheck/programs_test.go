package archcheck

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// envPrograms names the folder with the programs of unwind/corefile/testdata/src/stack.c, built with SPIN.
const envPrograms = "PGSB_ARCH_PROGRAMS"

// spinning is the stack of each of them; "" is the trampoline that the signal handler returns to.
var spinning = []string{
	"leaf", "crash", "deeper", "deeper", "deeper", "deeper", "on_signal", "",
	"leaf", "middle", "outer", "start_c", "_start",
}

// TestPrograms captures processes with known stacks, compiled in every supported way, with a signal frame of this
// kernel in the middle. It captures them at many moments of a loop in a leaf function.
func TestPrograms(t *testing.T) {
	dir := os.Getenv(envPrograms)
	if dir == "" {
		t.Skip(envPrograms + " is not set: make check-arch")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) < 6 {
		t.Fatalf("%v: %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			command := exec.Command(file)
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = command.Process.Kill()
				_ = command.Wait()
			})
			pid := strconv.Itoa(command.Process.Pid)
			wait(t, "the program spins", func() bool { return len(stacks(t, pid, 1)[0]) > 6 })
			want := spinning
			if strings.Contains(file, "bare") {
				want = spinning[:len(spinning)-1]
			}
			for _, stack := range stacks(t, pid, 40) {
				if !slices.Equal(stack, want) {
					out, _ := exec.Command(program, "capture", pid).CombinedOutput()
					t.Fatalf("%q\n%s", stack, out)
				}
			}
		})
	}
}

// stacks captures a process repeatedly. It returns the names of the frames, and the reason for each incomplete stack.
func stacks(t *testing.T, pid string, times int) (found [][]string) {
	t.Helper()
	out, err := exec.Command(program, "capture", "--format", "json", "--interval", "1ms",
		"--repeat", strconv.Itoa(times), pid).Output()
	if err != nil {
		t.Fatalf("capture: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		found = append(found, functions(t, line))
	}
	if len(found) != times {
		t.Fatalf("%d stacks of %d", len(found), times)
	}
	return found
}

// functions returns the names of an answer's frames.
func functions(t *testing.T, line string) (found []string) {
	t.Helper()
	var answer struct {
		Threads []struct {
			StopReason string `json:"stop_reason"`
			Frames     []struct {
				Function string `json:"function"`
				Note     string `json:"note"`
			} `json:"frames"`
		} `json:"threads"`
	}
	if err := json.Unmarshal([]byte(line), &answer); err != nil || len(answer.Threads) != 1 {
		t.Fatalf("%v: %s", err, line)
	}
	for _, f := range answer.Threads[0].Frames {
		if f.Note == "signal handler called" {
			f.Function = ""
		}
		found = append(found, f.Function)
	}
	// In code without call frame information and frame pointers, the outermost function never returns, so its code
	// does not give its caller.
	const base = "no call frame information, and no way to a return"
	if reason := answer.Threads[0].StopReason; reason != "end of stack" && !strings.HasPrefix(reason, base) {
		found = append(found, reason)
	}
	return found
}
