package stackoracle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The reference tools, by their names in the table of differences.
const (
	gdb     = "gdb"
	euStack = "eu-stack"
)

// toolTimeout ends a tool that hangs. On a busy host, a tool may take minutes.
const toolTimeout = 10 * time.Minute

// output runs a tool and returns its standard output and its standard error separately.
func output(t *testing.T, name string, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), toolTimeout)
	defer cancel()
	var out, messages bytes.Buffer
	command := exec.CommandContext(ctx, name, arguments...)
	command.Env = append(os.Environ(), "LC_ALL=C", "DEBUGINFOD_URLS=")
	command.Stdout, command.Stderr = &out, &messages
	err = command.Run()
	return out.String(), messages.String(), err
}

// takeOurs captures all threads of the subjects, with one command. The result has the stacks of each process.
func takeOurs(t *testing.T, subjects []subject) map[int]stacks {
	t.Helper()
	var all map[int]stacks
	wait(t, "a capture within the limit for a pause", func() bool { // which a machine without a free processor passes
		all = takeOnce(t, subjects)
		for _, threads := range all {
			for _, one := range threads {
				if strings.Contains(one.end, "could not be stopped in time") {
					return false
				}
			}
		}
		return true
	})
	return all
}

// takeOnce takes the stacks of subjects with one capture.
func takeOnce(t *testing.T, subjects []subject) map[int]stacks {
	t.Helper()
	arguments := []string{
		"capture", "--format", "json", "--max-frames", "20000", "--threads", "--timeout", toolTimeout.String(),
	}
	for _, s := range subjects {
		arguments = append(arguments, strconv.Itoa(s.pid))
	}
	out, messages, err := output(t, program, arguments...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(arguments, " "), err, messages)
	}
	all := map[int]stacks{}
	for line := range strings.Lines(out) {
		pid, threads := parseOurs(t, line)
		all[pid] = threads
	}
	return all
}

// parseOurs reads the capture of a process.
func parseOurs(t *testing.T, line string) (pid int, all stacks) {
	t.Helper()
	var capture struct {
		PID     int `json:"pid"`
		Threads []struct {
			TID    int    `json:"tid"`
			Reason string `json:"stop_reason"`
			Frames []struct {
				Address  string `json:"address"`
				Function string `json:"function"`
				Module   string `json:"module"`
				Inlined  bool   `json:"inlined"`
				Note     string `json:"note"`
			} `json:"frames"`
		} `json:"threads"`
	}
	if err := json.Unmarshal([]byte(line), &capture); err != nil {
		t.Fatalf("the capture printed %q: %v", line, err)
	}
	all = stacks{}
	for _, thread := range capture.Threads {
		s := &stack{end: thread.Reason, trampolines: map[int]bool{}}
		for _, f := range thread.Frames {
			if f.Inlined {
				continue
			}
			name := f.Function
			if name == "" {
				name = f.Module
			}
			if strings.Contains(f.Note, "signal") {
				s.trampolines[len(s.pcs)] = true
			}
			s.add(number(t, f.Address), name)
			s.modules = append(s.modules, f.Module)
		}
		all[thread.TID] = s
	}
	return capture.PID, all
}

var euFrame = regexp.MustCompile(`^#\d+\s+0x([0-9a-f]+)\s*(.*)`)

// takeEuStack runs eu-stack. Exit status 1 says that a stack may be incomplete; why is on standard error.
func takeEuStack(t *testing.T, pid int) stacks {
	t.Helper()
	out, messages, err := output(t, euStack, "-n", "0", "-p", strconv.Itoa(pid))
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("eu-stack of process %d: %v\n%s", pid, err, messages)
	}
	all := stacks{}
	var s *stack
	for line := range strings.Lines(out) {
		var tid int
		if n, _ := fmt.Sscanf(line, "TID %d:", &tid); n == 1 {
			s = &stack{end: strings.TrimSpace(messages)}
			all[tid] = s
		} else if m := euFrame.FindStringSubmatch(line); m != nil && s != nil {
			s.add(number(t, "0x"+m[1]), strings.TrimSpace(m[2]))
		}
	}
	return all
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimSpace(text), 0, 64)
	if err != nil {
		t.Fatalf("not a number: %q", text)
	}
	return n
}
