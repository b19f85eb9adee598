package capture_test

import (
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/trace"
)

// TestReturnProbes has the stacks of processes in functions whose return the kernel probes. The caller is where its
// code says that it calls the function, if it calls that by itself; or is left out, where it does so in two places with
// the same frame, or where the frame pointer leads on; or the stack ends there, and says why.
func TestReturnProbes(t *testing.T) {
	t.Parallel()
	const trampoline = "[uprobes]"
	chained := []string{"-fno-omit-frame-pointer"}
	for _, tt := range []struct {
		name   string
		flags  []string
		way    string
		probes []string
		want   []string // from innermost() to main(), or to where it ends
		whole  bool
	}{
		{"one call", nil, "once", []string{"probed"},
			[]string{"innermost", "probed", trampoline, "once", "by_once", "main"}, true},
		{"two calls", nil, "twice", []string{"probed"},
			[]string{"innermost", "probed", trampoline, "by_twice", "main"}, true},
		{"no call that can be seen", nil, "pointed", []string{"probed"}, []string{"innermost", "probed", trampoline}, false},
		{"a frame pointer that is not the caller's", nil, "framed", []string{"probed"},
			[]string{"innermost", "probed", trampoline}, false},
		{"no such call, with frame pointers", chained, "pointed", []string{"probed"},
			[]string{"innermost", "probed", trampoline, "by_pointed", "main"}, true},
		{"a function that calls itself", nil, "again", []string{"probed", "again"},
			[]string{"innermost", "probed", trampoline, "once", "by_once", "again", trampoline}, false},
		{"such a function, with frame pointers", chained, "again", []string{"probed", "again"}, []string{
			"innermost", "probed", trampoline, "once", "by_once", "again", trampoline, trampoline, trampoline,
		}, true},
		{"each function", nil, "once", []string{"innermost", "probed", "once", "by_once"},
			[]string{"innermost", trampoline}, false},
		{"each function, with frame pointers", chained, "once", []string{"innermost", "probed", "once", "by_once"},
			[]string{"innermost", trampoline, trampoline, trampoline, trampoline}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			exe := compile(t, "testdata/probed.c", slices.Concat([]string{"-O2", "-fno-ipa-icf"}, tt.flags)...)
			pid, goOn := probe(t, exe, tt.way, tt.probes)
			goOn()
			c := capturer(t)
			var th trace.Thread
			there := func() bool { // the very first time the trampoline is not mapped yet before the stop
				return slices.Contains(names(&th), "innermost") && slices.Contains(names(&th), trampoline)
			}
			for deadline := time.Now().Add(time.Minute); !there(); {
				th = take(t, c, pid, capture.Options{})
				if time.Now().After(deadline) {
					t.Fatalf("it does not get there: %q", names(&th))
				}
			}
			got := names(&th)
			got = got[slices.Index(got, "innermost"):]
			if i := slices.Index(got, "main"); i >= 0 {
				got = got[:i+1]
			} else if tt.whole {
				got = slices.DeleteFunc(got, func(name string) bool { return strings.Contains(name, "start") })
			}
			if !slices.Equal(got, tt.want) || th.Whole != tt.whole || !tt.whole && !strings.Contains(th.Stop, "return probe") {
				t.Errorf("%q, %s; want %q", got, th.Stop, tt.want)
			}
		})
	}
}

// probe starts a program and has the kernel probe the returns of some of its functions as long as the test lasts. It
// goes on when it is told to.
func probe(t *testing.T, exe, argument string, functions []string) (pid int, goOn func()) {
	t.Helper()
	cmd := exec.Command(exe, argument)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, function := range functions {
		probeReturnAt(t, cmd.Process.Pid, exe, offset(t, exe, function))
	}
	return cmd.Process.Pid, func() {
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
	}
}

// probeReturnAt sets one probe (perf_event_open(2), dynamic PMU "uprobe": config1 is the path, config2 the offset).
func probeReturnAt(t *testing.T, pid int, exe string, offset uint64) {
	t.Helper()
	text, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	if err != nil {
		t.Skipf("this kernel has no probes: %v", err)
	}
	kind, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	path, err := unix.BytePtrFromString(exe)
	if err != nil {
		t.Fatal(err)
	}
	const retprobe = 1
	attr := unix.PerfEventAttr{
		Type: uint32(kind), Config: retprobe, Ext1: uint64(uintptr(unsafe.Pointer(path))), Ext2: offset,
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, pid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(path)
	if err != nil {
		t.Skipf("no probe may be set: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
}

// offset is that of a function in a program's file.
func offset(t *testing.T, exe, function string) uint64 {
	t.Helper()
	f, err := elf.Open(filepath.Clean(exe))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name != function {
			continue
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && s.Value >= p.Vaddr && s.Value < p.Vaddr+p.Filesz {
				return s.Value - p.Vaddr + p.Off
			}
		}
	}
	t.Fatalf("%s has no %s", exe, function)
	return 0
}
