package waits

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The test program itself plays a process of a server, and this process its postmaster: these variables have the same
// address in both. They stand for my_wait_event_info, the event of the first PGPROC, MyBEEntry and its target.
//
//nolint:gochecknoglobals // as in the server
var (
	childEvent   uint32
	childPointer = &childEvent
	childStatus  = status{state: stateRunning, query: 4711, since: 1 << 60, changed: 1<<60 + 1}
	childEntry   = &childStatus
)

type status struct {
	since, changed uint64
	state          uint32
	query          uint64
}

const (
	stateIdle = iota + 1
	stateRunning

	clientRead = 0x06000000
	pgSleep    = 0x09000001
)

// childServer is the server that a child of this process belongs to.
func childServer() config {
	return config{
		Postmaster:  os.Getpid(),
		WaitPointer: uint64(uintptr(unsafe.Pointer(&childPointer))),
		FirstWait:   uint64(uintptr(unsafe.Pointer(&childEvent))), ProcSize: 64, Procs: 1,
		Status:  uint64(uintptr(unsafe.Pointer(&childEntry))),
		QueryID: int(unsafe.Offsetof(childStatus.query)), State: int(unsafe.Offsetof(childStatus.state)),
		QueryStart: int(unsafe.Offsetof(childStatus.since)), StateStart: int(unsafe.Offsetof(childStatus.changed)),
		Idle: stateIdle, Running: stateRunning,
	}
}

// A child is a process that waits on demand.
type child struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

const childVariable = "PGSB_TEST_WAITSBPF_CHILD"

func startChild(tb testing.TB) *child {
	tb.Helper()
	c := &child{command: exec.Command(os.Args[0])}
	c.command.Env = append(os.Environ(), childVariable+"=1")
	var err error
	if c.in, err = c.command.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.command.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = c.in.Close()
		_ = c.command.Wait()
	})
	return c
}

// do has the child do something a number of times. It returns how long that took, in ns.
func (c *child) do(tb testing.TB, what string, times int) (took int64) {
	tb.Helper()
	if _, err := fmt.Fprintln(c.in, what, times); err != nil {
		tb.Fatal(err)
	}
	if _, err := fmt.Fscanln(c.out, &took); err != nil {
		tb.Fatal(err)
	}
	return took
}

// init keeps the child on its main thread, as a process of a server is. Later it may have left that thread.
func init() { //nolint:gochecknoinits // before the main function
	if os.Getenv(childVariable) != "" {
		runtime.LockOSThread()
	}
}

// serve is the child's side. It runs on the main thread.
func serve() {
	in := bufio.NewReader(os.Stdin)
	for {
		var what string
		var times int
		if _, err := fmt.Fscanln(in, &what, &times); err != nil {
			return
		}
		var took int64
		switch what {
		case "sleep":
			took = sleeps(times)
		case "idle", "query":
			took = calls(what, times)
		case "other":
			took = otherCalls(times)
		}
		_, _ = fmt.Fprintln(os.Stdout, took)
	}
}

// childPause is the length of a child's sleep.
const childPause = time.Millisecond

// sleeps sleeps several times, and returns the sum of the times in ns as the child measures it.
func sleeps(times int) (sum int64) {
	standIn()
	pause := unix.NsecToTimespec(int64(childPause))
	for range times {
		began := time.Now()
		*childPointer = pgSleep
		_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
		*childPointer = 0
		sum += int64(time.Since(began))
	}
	return sum
}

// standIn stands for the start of the executor. It does not check the size of its stack: if the runtime preempts a
// goroutine at such a check, the function begins a second time.
//
//go:nosplit
//go:noinline
func standIn() { standIns++ }

var standIns int

// calls waits several times without sleeping, as a session whose next query has arrived, or inside a query. It returns
// the processor time in ns.
func calls(what string, times int) int64 {
	set, err := unix.EpollCreate1(0)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(set) }()
	var event unix.EpollEvent
	childStatus.state = stateRunning
	if what == "idle" {
		childStatus.state = stateIdle
	}
	before := threadTime()
	for range times {
		*childPointer = clientRead
		if what == "idle" {
			childStatus.changed++ // each wait is the first after a query
		}
		_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(set), uintptr(unsafe.Pointer(&event)), 1, 0, 0, 0)
		*childPointer = 0
	}
	return threadTime() - before
}

// otherCalls makes system calls that no wait makes.
func otherCalls(times int) int64 {
	before := threadTime()
	for range times {
		_, _, _ = unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	}
	return threadTime() - before
}

func threadTime() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return t.Nano()
}

// figuresOf returns the figures of an event in the only slot.
func figuresOf(tb testing.TB, p *programs, key uint32) (n, total uint64) {
	tb.Helper()
	var s slot
	if !p.Read(0, &s) {
		tb.Fatal("the slot changes")
	}
	for i := range s.Events {
		if e := &s.Events[i]; e.Key == key {
			for _, b := range e.Hist {
				n += uint64(b)
			}
			return n, e.Total
		}
	}
	return 0, 0
}

// TestUnseenSwitches expects that a sleep whose end the kernel does not report is counted, with its duration.
func TestUnseenSwitches(t *testing.T) {
	const times = 400
	for _, unseen := range []uint32{0, 3} {
		t.Run(strconv.FormatUint(uint64(unseen), 10), func(t *testing.T) {
			needPrograms(t, atSwitches)
			s := childServer()
			s.unseen = unseen
			p, err := loadPrograms(s, atSwitches)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := p.Attach(); err != nil {
				t.Fatal(err)
			}
			measured := startChild(t).do(t, "sleep", times)
			n, total := figuresOf(t, p, pgSleep)
			counters, err := p.Counters()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d sleeps, %v; measured %v; %d ends were not seen",
				n, time.Duration(total), time.Duration(measured), counters.CaughtUp)
			// On a busy host the time can be over before the child sleeps.
			if n < times*9/10 || n > times || int64(total) < int64(n)*int64(childPause) || int64(total) > measured {
				t.Errorf("%d sleeps, %v; measured %d, %v", n, time.Duration(total), times, time.Duration(measured))
			}
			if unseen != 0 && counters.CaughtUp < times/10 {
				t.Errorf("%d ends were not seen", counters.CaughtUp)
			}
		})
	}
}

// BenchmarkCall measures what the programs add to a system call that is no wait, to a wait inside a query, and to the
// first wait after a query: without programs, with empty ones, in a process of another server, and in a process of the
// server. The metric is the least of many rounds.
func BenchmarkCall(b *testing.B) {
	c := startChild(b)
	lowest := func(what string) float64 {
		const rounds, times = 2000, 300 // a round fits into a slice of processor time
		least := int64(1 << 62)
		for range rounds {
			least = min(least, c.do(b, what, times))
		}
		return float64(least) / times
	}
	for _, one := range []struct {
		name   string
		attach func(b *testing.B)
	}{
		{"none", func(*testing.B) {}},
		{"empty", attachEmpty},
		{"foreign", func(b *testing.B) { attachTo(b, noServer()) }},
		{"server", func(b *testing.B) { attachTo(b, childServer()) }},
	} {
		for _, what := range []string{"other", "query", "idle"} {
			b.Run(one.name+"/"+what, func(b *testing.B) {
				one.attach(b)
				var ns float64
				for b.Loop() {
					ns = lowest(what)
				}
				b.ReportMetric(ns, "least-ns/call")
			})
		}
	}
}

func attachTo(b *testing.B, s config) {
	b.Helper()
	p, err := loadPrograms(s, atCalls)
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(p.Close)
	if err := p.Attach(); err != nil {
		b.Skip(err)
	}
}

// attachEmpty attaches programs that do nothing.
func attachEmpty(b *testing.B) {
	b.Helper()
	for _, name := range []string{"sys_enter", "sys_exit"} {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "empty", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: name,
			License: "Dual MIT/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
		if err != nil {
			b.Skip(err)
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			b.Skip(err)
		}
		b.Cleanup(func() {
			_ = l.Close()
			_ = program.Close()
		})
	}
}

// BenchmarkAttach measures how long the kernel takes to attach the programs, and to detach and free them.
func BenchmarkAttach(b *testing.B) {
	for _, one := range []struct {
		name  string
		hooks hooks
	}{{"switches", atSwitches}, {"calls", atCalls}} {
		b.Run(one.name, func(b *testing.B) {
			attach, detach := time.Hour, time.Hour
			for b.Loop() {
				p, err := loadPrograms(noServer(), one.hooks)
				if err != nil {
					b.Skip(err)
				}
				began := time.Now()
				if err := p.Attach(); err != nil {
					b.Fatal(err)
				}
				attached := time.Now()
				p.detach()
				detach = min(detach, time.Since(attached))
				attach = min(attach, attached.Sub(began))
				p.Close()
			}
			b.ReportMetric(float64(attach.Nanoseconds())/1e6, "least-ms/attach")
			b.ReportMetric(float64(detach.Nanoseconds())/1e6, "least-ms/detach")
		})
	}
}

// TestSlotSize bounds the memory for each process of a server.
func TestSlotSize(t *testing.T) {
	if size := unsafe.Sizeof(slot{}); size > 10<<10 {
		t.Errorf("%d bytes", size)
	}
}
