package heap

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/allocs"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// needTracer skips a test where the kernel does not let this process trace allocations. A program that the kernel's
// verifier refuses is a failure.
func needTracer(t testing.TB) {
	t.Helper()
	err := allocs.Check()
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, allocs.ErrUnsupported) && !errors.Is(err, unix.EACCES):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// program is a running testdata/allocate.c.
type program struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// build compiles testdata/allocate.c.
func build(t testing.TB, compiler string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("no %s to compile testdata/allocate.c with", compiler)
	}
	exe := filepath.Join(t.TempDir(), "allocate")
	args := append([]string{"-g", "-O1", "-fno-builtin-malloc", "-pthread", "-o", exe, "testdata/allocate.c"}, flags...)
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, out)
	}
	return exe
}

func start(t testing.TB, exe string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(exe)}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	p.in, p.out = in, bufio.NewReader(out)
	p.expect("ready\n")
	return p
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) expect(want string) {
	p.t.Helper()
	if line, err := p.out.ReadString('\n'); line != want {
		p.t.Fatalf("the program printed %q, want %q (%v)", line, want, err)
	}
}

// do has the program execute commands.
func (p *program) do(commands ...string) {
	p.t.Helper()
	for _, command := range commands {
		_, _ = fmt.Fprintln(p.in, command)
		p.expect("ok\n")
	}
}

// during traces a process while work runs.
func during(t testing.TB, pid int, o allocs.Options, work func()) *Report {
	t.Helper()
	r, err := tryDuring(t, pid, o, work)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryDuring(t testing.TB, pid int, o allocs.Options, work func()) (*Report, error) {
	t.Helper()
	a, err := Locate(pid)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	c, err := capture.New(capture.Config{LinesWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	worked, began := make(chan struct{}), false
	stat, err := process.ReadStat(pid)
	if err != nil {
		return nil, err
	}
	if o.MaxOverhead == 0 {
		o.MaxOverhead = -1 // a loaded machine makes estimates high
	}
	target := process.Target{PID: pid, UID: -1, StartTime: stat.StartTime}
	return Run(ctx, c, target, a, o, func(*allocs.Progress) {
		if began {
			return
		}
		began = true
		go func() {
			defer close(worked)
			work()
			cancel()
		}()
	})
}

// liveOf adds up the live blocks of the paths that have a function.
func liveOf(r *Report, function string) (blocks, bytes uint64) {
	for _, p := range r.Paths {
		if p.Stack != nil && slices.ContainsFunc(p.Stack.Frames, func(f backtrace.Frame) bool { return f.Function == function }) {
			blocks, bytes = blocks+p.LiveObjects, bytes+p.LiveBytes
		}
	}
	return blocks, bytes
}

// TestEveryFunction: each call of a function of the allocator counts once, even if the function calls other functions
// of the allocator.
func TestEveryFunction(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	r := during(t, p.pid(), allocs.Options{Blocks: true}, func() { p.do("mix", "leak 1000 40", "older 7", "grow 8") })
	c, total := &r.Counters, r.Total()
	blocks, bytes := liveOf(r, "mix")
	if want := uint64(1000 + 3000 + 500 + 640 + 700 + 11 + 0 + 8192 + 12288); blocks != 9 || bytes != want {
		t.Errorf("mix has left %d blocks with %d bytes, want 9 with %d", blocks, bytes, want)
	}
	if blocks, bytes := liveOf(r, "take"); blocks != 1000 || bytes != 40000 {
		t.Errorf("take has left %d blocks with %d bytes", blocks, bytes)
	}
	if total.LiveObjects != 1010 || total.LiveBytes != 40000+26331+5000 {
		t.Errorf("live are %d blocks with %d bytes", total.LiveObjects, total.LiveBytes)
	}
	// glibc rounds blocks up to 16 bytes.
	if c.Older != 8 || c.OlderBytes < 8*1000 || c.OlderBytes > 8*1016 {
		t.Errorf("%d older blocks with %d bytes", c.Older, c.OlderBytes)
	}
	if c.Failed != 2 || c.Shared != 1 || c.SharedBytes != 65536 || c.UnknownMaps != 0 {
		t.Errorf("counters %+v", *c)
	}
	if c.Replaced+c.Untracked+c.LostCalls+c.Unmatched+c.NoStack+c.OtherStacks != 0 {
		t.Errorf("lost: %+v", *c)
	}
	sum := uint64(0)
	for _, sizes := range r.Live {
		for _, size := range sizes {
			sum += size
		}
	}
	if sum != total.LiveBytes {
		t.Errorf("the single blocks have %d bytes, the sums %d", sum, total.LiveBytes)
	}
}

// TestStacks: a call path has its functions and lines, whole, also one of 30 kB.
func TestStacks(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	r := during(t, p.pid(), allocs.Options{}, func() { p.do("deep 100 77") })
	if len(r.Paths) != 1 || r.Paths[0].Stack == nil || !r.Paths[0].Stack.Whole {
		t.Fatalf("%d paths, %+v", len(r.Paths), r.Paths)
	}
	var names []string
	for _, f := range r.Paths[0].Stack.Frames {
		names = append(names, f.Function)
	}
	got := strings.Join(names, " ")
	if want := "malloc take" + strings.Repeat(" deep", 101) + " main "; !strings.HasPrefix(got, want) {
		t.Errorf("the stack is %s", got)
	}
	if f := r.Paths[0].Stack.Frames[1]; filepath.Base(f.File) != "allocate.c" || f.Line == 0 {
		t.Errorf("take is at %s:%d", f.File, f.Line)
	}
}

// TestThreads: the allocations of all threads of a process are counted together. Allocations of another process are not
// counted.
func TestThreads(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	const threads, count = 8, 2000
	r := during(t, p.pid(), allocs.Options{}, func() {
		p.do("fork 500", fmt.Sprintf("threads %d %d", threads, count), "fork 500")
	})
	blocks, bytes := liveOf(r, "thread")
	if blocks != threads*count || bytes != threads*count*100 || r.Counters.Replaced != 0 {
		t.Errorf("%d blocks with %d bytes are live, want %d: %+v", blocks, bytes, threads*count, r.Counters)
	}
	var allocated uint64
	for _, path := range r.Paths {
		allocated += path.Objects
	}
	// A thread and a fork allocate some blocks of their own.
	if want := uint64(2 * threads * count); allocated < want || allocated > want+200 {
		t.Errorf("%d blocks were allocated, want %d", allocated, want)
	}
}

// TestThreadsThatEnd: the limit of threads applies to threads that live at the same time, not to all threads of a
// trace.
func TestThreadsThatEnd(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	const threads = 5000 // more than the table of calls has room for
	r := during(t, p.pid(), allocs.Options{}, func() { p.do(fmt.Sprintf("successive %d", threads)) })
	if blocks, _ := liveOf(r, "thread"); blocks != threads || r.Counters.LostCalls != 0 {
		t.Errorf("%d blocks are live, want %d: %+v", blocks, threads, r.Counters)
	}
}

// TestBudget: a trace that costs more than its budget ends by itself, and reports the reason.
func TestBudget(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	r := during(t, p.pid(), allocs.Options{MaxOverhead: 0.05}, func() {
		_, _ = fmt.Fprintln(p.in, "spin")
		<-t.Context().Done()
	})
	if !r.TooDear || r.Share() < 0.05 || !strings.Contains(strings.Join(r.Notes(), "\n"), "it cost too much") {
		t.Errorf("%+v, %q", r.Progress, r.Notes())
	}
	if n := r.Total().LiveObjects; n > 1 {
		t.Errorf("%d blocks are live of a program that frees each one", n)
	}
	t.Logf("ended after %s", r.Elapsed)
}

// TestSlowNamesDoNotDelayChecks: while the stacks wait for their names, figures are reported, the end of the context
// ends the trace, and no stack is lost.
func TestSlowNamesDoNotDelayChecks(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	before := codeAtMalloc(t, p.pid())
	a, err := Locate(p.pid())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	stat, err := process.ReadStat(p.pid())
	if err != nil {
		t.Fatal(err)
	}
	target := a.target
	target.Process = process.Target{PID: p.pid(), UID: -1, StartTime: stat.StartTime}
	tracer, err := allocs.Open(target, allocs.Options{MaxOverhead: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	const paths = 40 // one between two reports: more batches than may wait for their names
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release, done := make(chan struct{}), make(chan error, 1)
	reports, stacks := 0, 0
	go func() {
		_, err := tracer.Run(ctx, func(list []allocs.Stack) error {
			<-release
			stacks += len(list)
			return nil
		}, func(*allocs.Progress) {
			if reports++; reports > paths {
				cancel()
			} else {
				p.do(fmt.Sprintf("deep %d 10", reports))
			}
		})
		done <- err
	}()
	deadline := time.Now().Add(3 * time.Minute)
	for ctx.Err() == nil || codeAtMalloc(t, p.pid()) != before {
		if time.Now().After(deadline) {
			t.Error("the process is still traced")
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if stacks < paths {
		t.Errorf("%d stacks arrived of %d call paths", stacks, paths)
	}
}

// TestNoRoom: the report counts blocks and stacks for which the tables had no room.
func TestNoRoom(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	commands := []string{"leak 1000 40"}
	for i := range 50 {
		commands = append(commands, fmt.Sprintf("deep %d 10", i))
	}
	r := during(t, p.pid(), allocs.Options{MaxBlocks: 500, MaxPaths: 20}, func() { p.do(commands...) })
	c, total := &r.Counters, r.Total()
	if total.Objects != 1050 || total.LiveObjects+c.Untracked != 1050 || c.Untracked == 0 || c.OtherStacks == 0 {
		t.Errorf("%+v, %+v", total, *c)
	}
	notes := strings.Join(r.Notes(), "\n")
	if !strings.Contains(notes, "lower bound") || !strings.Contains(notes, "not kept apart by stack") {
		t.Error(notes)
	}
}

// TestNoGrowthWithoutRoom: a block that was allocated during the trace, but for which there was no room, counts as
// older when it is freed. So the report has a note about such blocks, and no growth.
func TestNoGrowthWithoutRoom(t *testing.T) {
	t.Parallel()
	const growth = "; growth +400 bytes"
	for _, c := range []struct {
		name               string
		untracked, lost    uint64
		headers, hasGrowth bool
	}{
		{"all blocks kept", 0, 0, true, true},
		{"no room for a block", 1, 0, true, false},
		{"no room for a thread", 0, 1, true, false},
		{"no headers", 1, 0, false, false},
	} {
		r := &Report{Allocator: &Allocator{}, Paths: []*Path{{Sums: allocs.Sums{LiveBytes: 1000}}}}
		r.Allocator.target.HasHeaders = c.headers
		r.Counters = allocs.Counters{Untracked: c.untracked, LostCalls: c.lost, Older: 3, OlderBytes: 600}
		summary, notes := strings.Join(r.Summary(), "\n"), strings.Join(r.Notes(), "\n")
		if strings.Contains(summary, growth) != c.hasGrowth || !c.hasGrowth && strings.Contains(summary, "growth") {
			t.Errorf("%s: %s", c.name, summary)
		}
		included := strings.Contains(summary, "or allocated since without being kept: 3 blocks")
		noted := strings.Contains(notes, "count, when they are freed, as freed from before the start")
		if want := c.untracked+c.lost > 0; included != want || noted != want {
			t.Errorf("%s: %s\n%s", c.name, summary, notes)
		}
	}
}

// TestEnds: the trace ends when the process ends, and reports the allocations until then.
func TestEnds(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	r := during(t, p.pid(), allocs.Options{}, func() {
		p.do("leak 100 10")
		_ = p.cmd.Process.Kill()
		<-t.Context().Done()
	})
	if !r.Ended || r.Total().Objects != 100 {
		t.Errorf("ended %v, %+v", r.Ended, r.Total())
	}
	if _, err := tryDuring(t, p.pid(), allocs.Options{}, func() {}); err == nil {
		t.Error("a process that has ended was traced")
	}
}

// TestTwoTraces: two traces of one process and a probe of another tool run at the same time. Each of them counts all
// calls.
func TestTwoTraces(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	count := probeByPerf(t, p.pid())
	var inner *Report
	outer := during(t, p.pid(), allocs.Options{}, func() {
		inner = during(t, p.pid(), allocs.Options{}, func() { p.do("leak 300 10") })
		p.do("leak 200 10")
	})
	p.do("leak 100 10")
	if n := count(); n != 600 {
		t.Errorf("perf has counted %d calls of malloc, want 600", n)
	}
	if a, b := inner.Total().Objects, outer.Total().Objects; a != 300 || b != 500 {
		t.Errorf("the traces have %d and %d allocations, want 300 and 500", a, b)
	}
}

// probeByPerf counts calls of malloc in the manner of perf(1).
func probeByPerf(t *testing.T, pid int) (count func() uint64) {
	t.Helper()
	number, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	if err != nil {
		t.Skip("the kernel has no uprobe events of perf: ", err)
	}
	a, err := Locate(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	path, err := unix.BytePtrFromString(fmt.Sprintf("/proc/self/fd/%d", a.target.File.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	attr := unix.PerfEventAttr{Size: unix.PERF_ATTR_SIZE_VER8, Ext1: uint64(uintptr(unsafe.Pointer(path)))}
	attr.Ext2 = a.target.Functions[0].Offset
	if _, err := fmt.Sscan(string(number), &attr.Type); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PerfEventOpen(&attr, pid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(path)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		t.Skip("perf may not probe: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() uint64 {
		var n [8]byte
		if _, err := unix.Read(fd, n[:]); err != nil {
			t.Error(err)
		}
		return binary.NativeEndian.Uint64(n[:])
	}
}

// TestDetached: after a trace the process has no breakpoint.
func TestDetached(t *testing.T) {
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	before := codeAtMalloc(t, p.pid())
	during(t, p.pid(), allocs.Options{}, func() {
		if got := codeAtMalloc(t, p.pid()); got == before {
			t.Error("there is no breakpoint during a trace")
		}
		p.do("leak 10 10")
	})
	if got := codeAtMalloc(t, p.pid()); got != before {
		t.Errorf("the code of malloc is 0x%02x after the trace, and was 0x%02x", got, before)
	}
}

// codeAtMalloc reads the byte at which malloc is probed.
func codeAtMalloc(t *testing.T, pid int) byte {
	t.Helper()
	a, err := Locate(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	maps, err := process.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(a.target.File.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	offset := a.target.Functions[0].Offset
	for _, m := range maps {
		if m.Inode == st.Ino && m.Perms&process.Exec != 0 && offset >= m.Offset && offset-m.Offset < m.End-m.Start {
			var code [1]byte
			if _, err := process.ReadMemory(pid, m.Start+offset-m.Offset, code[:]); err != nil {
				t.Fatal(err)
			}
			return code[0]
		}
	}
	t.Fatal("malloc is not mapped")
	return 0
}

// TestKilled: kill -9 of a program that traces leaves no breakpoint in the process.
func TestKilled(t *testing.T) {
	if pid := os.Getenv(killedVariable); pid != "" {
		traceUntilKilled(t, pid)
	}
	needTracer(t)
	t.Parallel()
	p := start(t, build(t, "gcc"))
	before := codeAtMalloc(t, p.pid())
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run", "^TestKilled$")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killedVariable, p.pid()))
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "traced\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if codeAtMalloc(t, p.pid()) == before {
		t.Error("there is no breakpoint during the trace")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	for deadline := time.Now().Add(3 * time.Minute); codeAtMalloc(t, p.pid()) != before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there is still a breakpoint a minute after kill -9")
		}
	}
	p.do("leak 10 10")
}

const killedVariable = "PGSB_TEST_ALLOCATION_KILLED"

func traceUntilKilled(t *testing.T, pid string) {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		t.Fatal(err)
	}
	during(t, n, allocs.Options{}, func() {
		fmt.Println("traced")
		time.Sleep(time.Hour)
	})
}

// TestOtherAllocators: musl's allocator and those of static programs are found by their symbols. Programs without a
// malloc are refused with a reason.
func TestOtherAllocators(t *testing.T) {
	needTracer(t)
	for name, c := range map[string]struct {
		compiler string
		flags    []string
	}{
		"static": {"gcc", []string{"-static"}},
		"musl":   {"musl-gcc", []string{"-static"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, build(t, c.compiler, c.flags...))
			r := during(t, p.pid(), allocs.Options{}, func() { p.do("leak 100 40", "older 3") })
			if blocks, bytes := liveOf(r, "take"); blocks != 100 || bytes != 4000 || r.Counters.Older != 3 {
				t.Errorf("%d blocks with %d bytes, %d older: %+v", blocks, bytes, r.Counters.Older, r.Counters)
			}
			if r.Allocator.Name != "allocate" {
				t.Errorf("the allocator is %s", r.Allocator.Name)
			}
		})
	}
	t.Run("stripped", func(t *testing.T) {
		t.Parallel()
		p := start(t, build(t, "gcc", "-static", "-s"))
		if a, err := Locate(p.pid()); !errors.Is(err, ErrNoAllocator) {
			t.Errorf("%+v, %v", a, err)
		}
	})
	t.Run("Go", func(t *testing.T) {
		t.Parallel()
		if a, err := Locate(os.Getpid()); err == nil { // the test program may be linked with libc
			a.Close()
		} else if !errors.Is(err, ErrNoAllocator) {
			t.Error(err)
		}
	})
}

// TestHostileAllocatorName: the user of a process chooses the name of its program, which must not control the terminal.
func TestHostileAllocatorName(t *testing.T) {
	t.Parallel()
	exe := build(t, "gcc", "-static")
	hostile := filepath.Join(filepath.Dir(exe), "allo\x1b[2Jcate")
	if err := os.Rename(exe, hostile); err != nil {
		t.Fatal(err)
	}
	a, err := Locate(start(t, hostile).pid())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var b strings.Builder
	if err := (&Report{Allocator: a}).Text(&b, 0); err != nil || !strings.Contains(b.String(), "allocator allo?[2Jcate\n") {
		t.Errorf("%q, %v", b.String(), err)
	}
}
