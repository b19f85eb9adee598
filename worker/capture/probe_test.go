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
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestReturnProbes captures processes in functions whose returns the kernel probes. The caller of the function is
// found by the call in its code. It is left out if two calls with equal frames are possible, or if frame pointers
// continue the walk. Otherwise the stack ends there with a reason.
func TestReturnProbes(t *testing.T) {
	t.Parallel()
	const trampoline = "[uprobes]"
	for _, tt := range []struct {
		name          string
		way           string
		probes        []string
		want, chained []string // from innermost() to main(), or to where it ends; and where functions keep a chain
	}{
		{"one call", "once", []string{"probed"},
			[]string{"innermost", "probed", trampoline, "once", "by_once", "main"},
			[]string{"innermost", "probed", trampoline, "once", "by_once", "main"}},
		{"two calls", "twice", []string{"probed"},
			[]string{"innermost", "probed", trampoline, "by_twice", "main"},
			[]string{"innermost", "probed", trampoline, "by_twice", "main"}},
		{"no call that can be seen", "pointed", []string{"probed"},
			[]string{"innermost", "probed", trampoline},
			[]string{"innermost", "probed", trampoline, "by_pointed", "main"}},
		{"a frame pointer that is not the caller's", "framed", []string{"probed"},
			[]string{"innermost", "probed", trampoline},
			[]string{"innermost", "probed", trampoline, "framed", "main"}},
		{"a function that calls itself", "again", []string{"probed", "again"},
			[]string{"innermost", "probed", trampoline, "once", "by_once", "again", trampoline}, []string{
				"innermost", "probed", trampoline, "once", "by_once", "again", trampoline, trampoline, trampoline,
			}},
		{"each function", "once", []string{"innermost", "probed", "once", "by_once"},
			[]string{"innermost", trampoline},
			[]string{"innermost", trampoline, trampoline, trampoline, trampoline}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if runtime.GOARCH == "ppc64le" {
				t.Skip("all functions keep a chain on ppc64le")
			}
			behindProbes(t, tt.way, tt.probes, tt.want, slices.Contains(tt.want, "main"), "-fomit-frame-pointer")
		})
		t.Run(tt.name+", with a chain", func(t *testing.T) {
			t.Parallel()
			flag := "-fno-omit-frame-pointer"
			switch runtime.GOARCH {
			case "s390x":
				flag = "-mbackchain"
			case "ppc64le": // where code is not followed, so that no place of a call is found
				tt.chained = slices.DeleteFunc(slices.Clone(tt.chained), func(name string) bool { return name == "once" })
			}
			behindProbes(t, tt.way, tt.probes, tt.chained, true, flag)
		})
	}
}

// behindProbes verifies the stack of a program that was compiled with a flag, below the functions that lead to one.
func behindProbes(t *testing.T, way string, probes, want []string, whole bool, flag string) {
	t.Helper()
	const trampoline = "[uprobes]"
	exe := compile(t, "testdata/probed.c", "-O2", "-fno-ipa-icf", flag)
	pid, goOn := probe(t, exe, way, probes)
	goOn()
	c := capturer(t)
	var th backtrace.Thread
	there := func() bool { // the very first time the trampoline is not mapped yet before the stop
		return slices.Contains(names(&th), "innermost") && slices.Contains(names(&th), trampoline)
	}
	for deadline := time.Now().Add(3 * time.Minute); !there(); {
		th = take(t, c, pid, capture.Options{})
		if time.Now().After(deadline) {
			t.Fatalf("it does not get there: %q", names(&th))
		}
	}
	got := names(&th)
	got = got[slices.Index(got, "innermost"):]
	if i := slices.Index(got, "main"); i >= 0 {
		got = got[:i+1]
	} else if i = slices.IndexFunc(got, isStart); whole && i >= 0 {
		got = got[:i]
	}
	cut := strings.Contains(th.Stop, "return probe")
	if runtime.GOARCH == "arm64" && cut && len(got) < len(want) &&
		strings.HasSuffix(strings.Join(got, " "), trampoline+" "+trampoline) {
		// Here a record may lie anywhere in a frame, so remains below the next frame may look like a return address.
		want, whole = want[:len(got)], false
	}
	if !slices.Equal(got, want) || th.Whole != whole || !whole && !cut {
		t.Errorf("%q, %s; want %q", got, th.Stop, want)
	}
}

// isStart reports whether a function calls main().
func isStart(name string) bool { return strings.Contains(name, "start") }

// probe starts a program and lets the kernel probe the returns of some of its functions until the test ends. The
// program waits until goOn is called.
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

// offset returns the offset in a program's file at which a function begins for local callers.
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
				return s.Value - p.Vaddr + p.Off + localEntry(f, s.Other)
			}
		}
	}
	t.Fatalf("%s has no %s", exe, function)
	return 0
}

// localEntry returns the distance from a symbol to the entry for calls from the same image (Power Architecture 64-Bit
// ELF V2 ABI, 3.4.1 "Symbol Values": the three upper bits of st_other).
func localEntry(f *elf.File, other uint8) uint64 {
	if f.Machine != elf.EM_PPC64 || other>>5 < 2 {
		return 0
	}
	return 1 << (other >> 5)
}
