package stackoracle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// threads are the thread ids of a process.
func threads(pid int) []int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	tids := make([]int, 0, len(entries))
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// states is one letter of proc(5) for each thread.
func states(pid int) string {
	var letters strings.Builder
	for _, tid := range threads(pid) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
		if err != nil {
			continue
		}
		if _, rest, found := strings.Cut(string(data[bytes.LastIndexByte(data, ')')+1:]), " "); found {
			letters.WriteByte(rest[0])
		}
	}
	return letters.String()
}

// tracer returns the process that traces pid, "0" if there is none.
func tracer(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err.Error()
	}
	_, rest, _ := strings.Cut(string(data), "TracerPid:")
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.TrimSpace(rest)
}

func allIn(states, letters string) bool {
	return states != "" && strings.Trim(states, letters) == ""
}

// asleep waits until a process sleeps for good: no thread runs or waits for a page of a file, and the process has not run between
// some looks. Before that, it may sleep for a moment on its way to the spot where it blocks.
func asleep(t *testing.T, name string, pid int) {
	t.Helper()
	const enough = 5
	before, looks := uint64(0), 0
	wait(t, name+" asleep", func() bool {
		now := ran(pid)
		if !allIn(states(pid), "SI") || now != before {
			before, looks = now, 0
		}
		looks++
		return looks > enough
	})
}

// freeze stops a process by SIGSTOP at its current instruction, until thaw is called. ok is false when the process
// has ended.
func freeze(t *testing.T, pid int) (thaw func(), ok bool) {
	t.Helper()
	_ = syscall.Kill(pid, syscall.SIGSTOP) // the end of a process shows in its state
	wait(t, fmt.Sprintf("process %d stopped", pid), func() bool {
		now := states(pid)
		return allIn(now, "T") || allIn(now, "ZX") || now == ""
	})
	return func() { _ = syscall.Kill(pid, syscall.SIGCONT) }, allIn(states(pid), "T")
}

// ran is for how long a process has been on a processor, in nanoseconds.
func ran(pid int) (ns uint64) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0
	}
	_, _ = fmt.Sscan(string(data), &ns)
	return ns
}

// runOn lets a frozen process run for a moment of unpredictable length. If it waits for one of the other processes,
// which are frozen too, runOn lets them run until it has run.
func runOn(t *testing.T, pid int, thaw func(), others ...int) {
	t.Helper()
	const least = 300_000 // ns
	const patience = 2 * time.Second
	before, began, thawed := ran(pid), time.Now(), false
	thaw()
	wait(t, fmt.Sprintf("process %d running", pid), func() bool {
		if !thawed && time.Since(began) > patience {
			thawed = true
			for _, other := range others {
				_ = syscall.Kill(other, syscall.SIGCONT)
			}
		}
		return ran(pid) > before+least
	})
	for _, other := range others {
		if thawed && other != pid {
			_, _ = freeze(t, other)
		}
	}
}

// title is the current command line of a process, where PostgreSQL writes the process's kind.
func title(pid int) string {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}

// children are the processes whose parent is pid.
func children(pid int) []int {
	var found []int
	for _, tid := range threads(pid) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, tid))
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}
