package allocs

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
)

func needTracer(t *testing.T) {
	t.Helper()
	if err := Check(); errors.Is(err, unix.EPERM) || errors.Is(err, ErrUnsupported) && !errors.Is(err, unix.EACCES) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%+v", err)
	}
}

func TestLoad(t *testing.T) { needTracer(t) }

// TestUncountedThreadsRefused: an older kernel counts the calls of the main thread only.
func TestUncountedThreadsRefused(t *testing.T) {
	tracer := programs{uprobes: bpf.Uprobes{MainThreadOnly: true}}
	if err := tracer.CheckThreads(os.Getpid()); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a process with several threads, whose calls would not all count: %v", err)
	}
}

// TestManyRanges checks that the mappings of a process with too much separate code for the BPF programs count as known.
// Otherwise fetch would read them again for each stack.
func TestManyRanges(t *testing.T) {
	const variable = "PGSB_TEST_RANGES"
	if os.Getenv(variable) != "" {
		mapCode(t, 2*MaxRanges)
		_, _ = os.Stdout.WriteString("mapped\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
		return
	}
	child := exec.Command("/proc/self/exe", "-test.run=^TestManyRanges$")
	child.Env = append(os.Environ(), variable+"=1")
	stdin, err1 := child.StdinPipe()
	stdout, err2 := child.StdoutPipe()
	if err := errors.Join(err1, err2, child.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = stdin.Close(), child.Wait() }()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "mapped\n" {
		t.Fatal(line, err)
	}
	copied, err := observe.NewCopiedProcess(process.Target{PID: child.Process.Pid, UID: -1})
	if errors.Is(err, process.ErrNotPermitted) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer copied.Release()
	tracer := Tracer{target: Target{Process: process.Target{PID: child.Process.Pid}}, process: copied}
	if err := tracer.learnCode(); err != nil {
		t.Fatal(err)
	}
	if want := codePages(child.Process.Pid); tracer.pages != want || want == 0 {
		t.Errorf("the mappings of %d pages with code are known, of %d", tracer.pages, want)
	}
}

// mapCode maps pages of code with gaps between them.
func mapCode(t *testing.T, n int) {
	t.Helper()
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 2*n*page, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	for i := 0; i < n && err == nil; i++ {
		err = unix.Mprotect(memory[2*i*page:(2*i+1)*page], unix.PROT_READ|unix.PROT_EXEC)
	}
	if err != nil {
		t.Fatal(err)
	}
}
