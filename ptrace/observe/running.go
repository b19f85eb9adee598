package observe

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

const (
	samplePeriod = 100 * time.Microsecond // CPU time of the thread until the sample is taken
	// maxUserStack is the largest stack in one sample (sample_stack_user is a 16-bit number, a multiple of 8). The
	// kernel shortens it so that the whole record has no more bytes.
	maxUserStack = 65528
	ringPages    = 32 // a power of two; twice the size of one sample with pages of 4 KiB
	// ringRoom is the part of the ring that the kernel may use: the size of one sample and a reserve. The event continues
	// until we disable it. But when this part is full, the event costs the thread very little.
	ringRoom = 96 << 10
)

// samplers limits the number of concurrent samples to its capacity, because the kernel gives an unprivileged user little
// memory for them (kernel.perf_event_mlock_kb, 516 by default).
//
//nolint:gochecknoglobals // the kernel's limit is per user, however many users this package has
var samplers = make(chan struct{}, 3)

// running waits until the kernel has taken one sample of a thread on the CPU: its registers and the top of its stack.
// An interrupt on the thread's CPU copies both at one moment. The error is errNoSample if the thread did not run long
// enough within the limit, or if other samples used all samplers.
func (w *observer) running(tid int, limit time.Duration) (snapshot.Thread, error) {
	thread := snapshot.Thread{TID: tid}
	if perfRegisters == nil {
		return thread, errors.New("no sampling on this architecture")
	}
	stat, err := process.ReadTaskStat(w.target.PID, tid)
	if err != nil {
		return thread, process.ReadError(w.target.PID, tid, err)
	}
	if stat.Flags&process.Exiting != 0 {
		return thread, process.Exited(tid)
	}
	thread.Name, thread.State = stat.Comm, stat.State
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case samplers <- struct{}{}:
		defer func() { <-samplers }()
	case <-timer.C:
		return thread, errNoSample
	}
	s, err := openSampler(tid)
	if err != nil {
		return thread, w.sampleError(tid, err)
	}
	defer s.close()
	var before marks
	if tid == w.target.PID {
		before = w.mark()
	}
	taken, err := s.await(limit)
	if err != nil {
		return thread, err
	}
	thread.Registers = taken.registers
	_, end, ok := snapshot.StackIn(w.maps, taken.sp, 0)
	if len(taken.stack) == 0 {
		thread.Err = snapshot.ErrNoStack
		return thread, nil
	}
	cut := !ok || taken.sp+uint64(len(taken.stack)) < end
	thread.Stack = snapshot.Stack{Start: taken.sp, Data: taken.stack, Cut: cut}
	if tid == w.target.PID && w.options.ExtraReads != nil {
		if w.found = w.follow(tid, &thread.Stack); !before.same(w.mark()) {
			w.found, w.moved = nil, true
		}
	}
	return thread, nil
}

// sampler is one perf event with its ring of memory.
type sampler struct {
	fd   int
	ring []byte
}

// openSampler opens the perf event, if possible including time in the kernel. A thread that spends all its time in system
// calls is then sampled too, with the registers of its entry into the kernel. Without CAP_PERFMON this needs
// kernel.perf_event_paranoid <= 1. An event for time in user mode alone needs <= 2.
func openSampler(tid int) (*sampler, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Sample:      uint64(samplePeriod.Nanoseconds()),
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_REGS_USER | unix.PERF_SAMPLE_STACK_USER,
		Bits:        unix.PerfBitDisabled | unix.PerfBitExcludeHv, Wakeup: 1,
		Sample_regs_user: perfMask(), Sample_stack_user: maxUserStack,
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		attr.Bits |= unix.PerfBitExcludeKernel
		fd, err = unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	ring, err := unix.Mmap(fd, 0, (1+ringPages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("map the memory for a sample: %w", err)
	}
	s := &sampler{fd, ring}
	s.meta().Data_tail = ringRoom // the kernel may write to the part of the ring before the tail
	return s, nil
}

// meta is the ring's first page.
func (s *sampler) meta() *unix.PerfEventMmapPage {
	return (*unix.PerfEventMmapPage)(unsafe.Pointer(&s.ring[0]))
}

func (s *sampler) close() {
	_ = unix.Munmap(s.ring)
	_ = unix.Close(s.fd)
}

// await enables the event until one sample is taken, and returns the sample. The event must not disable itself after
// a sample (PERF_EVENT_IOC_REFRESH). Linux 6.17 would disable it in the handler of the event's timer, wait there for the
// end of the same handler, and hang ("perf/core: Fix system hang caused by cpu-clock usage").
func (s *sampler) await(limit time.Duration) (*sample, error) {
	if err := s.enable(); err != nil {
		return nil, err
	}
	defer func() { _ = unix.IoctlSetInt(s.fd, unix.PERF_EVENT_IOC_DISABLE, 0) }()
	deadline := time.Now().Add(limit)
	for {
		// After the thread has ended, Poll always reports POLLHUP.
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, max(0, int(time.Until(deadline).Milliseconds())))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("wait for a sample: %w", err)
		}
		taken, err := s.take()
		if !errors.Is(err, errNoSample) {
			return taken, err
		}
		if n > 0 || time.Until(deadline) < time.Millisecond {
			return nil, errNoSample
		}
	}
}

func (s *sampler) enable() error {
	if err := unix.IoctlSetInt(s.fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return fmt.Errorf("start sampling: %w", err)
	}
	return nil
}

// take returns the first sample in the ring, or errNoSample.
func (s *sampler) take() (*sample, error) {
	head := atomic.LoadUint64(&s.meta().Data_head)
	data := s.ring[os.Getpagesize():]
	// Read the ring from its beginning, because the kernel overwrites nothing in it.
	return parseRing(data[:min(head, uint64(len(data)))])
}

// sampleError returns the reason why the kernel refuses to sample a thread. err is the error of openSampler.
func (w *observer) sampleError(tid int, err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return process.Exited(tid)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
	default:
		return process.Failed(tid, "perf_event_open", err)
	}
	why := process.Denied(w.target.PID, tid)
	var known *process.PermissionError
	if errors.As(why, &known) && known.Reason != process.ReasonUnknown && known.Reason != process.ReasonYama {
		return why
	}
	text, readErr := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	level, numberErr := strconv.Atoi(strings.TrimSpace(string(text)))
	if readErr != nil || numberErr != nil || level <= 2 {
		return &process.PermissionError{
			PID: tid, Reason: process.ReasonPerf, Detail: fmt.Sprintf("perf_event_open: %v", err),
		}
	}
	return &process.PermissionError{
		PID: tid, Reason: process.ReasonPerf,
		Detail: fmt.Sprintf("kernel.perf_event_paranoid is %d and CAP_PERFMON is missing", level),
	}
}
