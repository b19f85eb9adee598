package steps

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/unwind/arch"
)

// Wake is a signal that only ends a step which waits in a system call.
const Wake = unix.SIGCONT

// ErrEnded says that the process has ended.
var ErrEnded = errors.New("steps: the process has ended")

// ErrArchitecture says that processes are not stepped on this machine.
var ErrArchitecture = errors.New("steps: not on this architecture")

// Process is a process that is stopped between two instructions. Only the goroutine that has started or attached it
// may use it. This goroutine is locked to its operating system thread from then on.
type Process struct {
	// PID is its process id.
	PID int
	// Registers are its registers, as the kernel returns them: NT_PRSTATUS.
	Registers []byte
	// Called is set if its last step was a system call, which may have changed the mappings.
	Called bool
	// Left is set if its last step ended calls without a return.
	Left bool

	arch     *arch.Arch
	classify func([]byte) kind
	now      place
	link     uint64
	calls    calls
	kinds    map[uint64]kind
	signal   int // to be delivered with the next step
	command  *exec.Cmd
	free     []affinity
}

// Frame is a frame of an attached process: the address where it continues, and its stack pointer there.
type Frame struct{ PC, SP uint64 }

// newProcess returns one of this host's architecture.
func newProcess() (*Process, error) {
	a := arch.Host()
	if a == nil || classifiers[a.Instructions] == nil {
		return nil, ErrArchitecture
	}
	const size = 512 // more than any architecture has
	return &Process{
		arch: a, classify: classifiers[a.Instructions], kinds: make(map[uint64]kind), calls: newCalls(a),
		Registers: make([]byte, size),
	}, nil
}

// affinity is the processors that a thread may use.
type affinity struct {
	tid int
	set unix.CPUSet
}

// pin binds the threads to the first processor that the first thread may use. Waking another processor would make a
// step ten times as long.
func (p *Process) pin(tids ...int) error {
	var one unix.CPUSet
	for i, tid := range tids {
		before := affinity{tid: tid}
		if err := unix.SchedGetaffinity(tid, &before.set); err != nil {
			return fmt.Errorf("steps: %w", err)
		}
		for cpu := 0; i == 0 && one.Count() == 0; cpu++ {
			if before.set.IsSet(cpu) {
				one.Set(cpu)
			}
		}
		if err := unix.SchedSetaffinity(tid, &one); err != nil {
			return fmt.Errorf("steps: %w", err)
		}
		p.free = append(p.free, before)
	}
	return nil
}

// Start starts a program and stops it before its dynamic linker's first instruction.
func Start(command *exec.Cmd) (*Process, error) {
	runtime.LockOSThread()
	if command.SysProcAttr == nil {
		command.SysProcAttr = &unix.SysProcAttr{}
	}
	command.SysProcAttr.Ptrace = true
	p, err := newProcess()
	if err != nil {
		return nil, err
	}
	p.command = command
	if err := p.pin(unix.Gettid()); err != nil { // the program inherits it
		return nil, err
	}
	if err := command.Start(); err != nil {
		p.unpin()
		return nil, fmt.Errorf("steps: %w", err)
	}
	p.PID = command.Process.Pid
	var status unix.WaitStatus
	if err := p.wait(&status); err != nil {
		return nil, err
	}
	if !status.Stopped() {
		return nil, fmt.Errorf("steps: process %d did not stop at its beginning: %#x", p.PID, status)
	}
	if err := unix.PtraceSetOptions(p.PID, unix.PTRACE_O_TRACEEXEC); err != nil {
		return nil, fmt.Errorf("steps: process %d: %w", p.PID, err)
	}
	return p, p.read()
}

// Attach stops a process, which must have one thread, and calls frames for its frames, innermost first.
func Attach(pid int, frames func(p *Process) ([]Frame, error)) (*Process, error) {
	runtime.LockOSThread()
	p, err := newProcess()
	if err != nil {
		return nil, err
	}
	p.PID = pid
	if err := p.pin(unix.Gettid(), pid); err != nil {
		return nil, err
	}
	if err := unix.PtraceSeize(pid); err != nil {
		return nil, fmt.Errorf("steps: process %d: %w", pid, err)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return nil, fmt.Errorf("steps: process %d: %w", pid, err)
	}
	var status unix.WaitStatus
	if err := p.wait(&status); err != nil {
		return nil, err
	}
	if err := p.read(); err != nil {
		return nil, err
	}
	known, err := frames(p)
	for i := len(known) - 1; i > 0; i-- {
		p.calls.begin(place{known[i].PC, known[i].SP})
	}
	return p, err
}

// End detaches an attached process, and kills a started process.
func (p *Process) End() error {
	p.unpin()
	if p.command != nil {
		_ = p.command.Process.Kill()
		_ = p.command.Wait() // killed
		return nil
	}
	if err := unix.PtraceDetach(p.PID); err != nil {
		return fmt.Errorf("steps: process %d: %w", p.PID, err)
	}
	return nil
}

func (p *Process) unpin() {
	for _, a := range p.free {
		_ = unix.SchedSetaffinity(a.tid, &a.set) // it may have ended
	}
	p.free = nil
}

// Stack returns the process's call stack, innermost first: the current address, and the return address of each call.
func (p *Process) Stack(dst []uint64) []uint64 {
	dst = append(dst, p.now.pc)
	for _, c := range slices.Backward(p.calls.open) {
		dst = append(dst, c.back.pc)
	}
	return dst
}

// PC returns the address of the next instruction.
func (p *Process) PC() uint64 { return p.now.pc }

// Step executes an instruction of the process, or begins a signal handler. The error is ErrEnded if the process has
// ended.
func (p *Process) Step() error {
	before := p.now
	what, err := p.kindAt(before.pc)
	if err != nil {
		return err
	}
	delivered := p.signal
	executed, err := p.resume()
	if err != nil {
		return err
	}
	if err := p.read(); err != nil {
		return err
	}
	p.Called = what == system && p.now != before || executed
	p.Left = false
	switch {
	case executed:
		p.calls.clear()
	case delivered != 0 && p.entered(before):
		p.calls.begin(before)
		return p.handled()
	case what > 0 && p.now.pc != before.pc:
		p.calls.begin(place{before.pc + uint64(what), before.sp})
	default:
		p.Left = p.calls.settle(&step{kind: what, at: before.pc, now: p.now, link: p.link})
	}
	return nil
}

// entered reports whether the kernel has called a signal handler. Then the process is at another place, and the
// interrupted registers are on the stack. A signal without a handler leaves the instruction to be executed.
func (p *Process) entered(before place) bool {
	const least = 256 // bytes, that no call takes
	return p.now.pc-before.pc > longest && before.sp > p.now.sp && before.sp-p.now.sp >= least
}

// handled records that a signal handler has begun. It returns to the code whose system call ends it.
func (p *Process) handled() error {
	if p.calls.pushed == 0 {
		p.calls.begin(place{p.link, p.now.sp})
		return nil
	}
	var word [8]byte
	if _, err := p.Read(p.now.sp, word[:]); err != nil {
		return err
	}
	p.calls.begin(place{p.arch.Order.Uint64(word[:]), p.now.sp + p.calls.pushed})
	return nil
}

// resume lets the process run one step, and waits for it. A signal that stops the process is delivered with the next
// step, except for Wake. The result reports whether the process executed another program.
func (p *Process) resume() (executed bool, err error) {
	signal := p.signal
	p.signal = 0
	var status unix.WaitStatus
	for stopped := false; !stopped; {
		if err := singleStep(p.PID, signal); err != nil {
			return executed, p.ended(err)
		}
		if err := p.wait(&status); err != nil {
			return executed, err
		}
		signal = 0
		// Both the signal Wake and the execution of another program stop the process before the end of the step.
		event := status >> 16
		executed = executed || event == unix.PTRACE_EVENT_EXEC
		stopped = event != unix.PTRACE_EVENT_STOP && event != unix.PTRACE_EVENT_EXEC
	}
	if stop := status.StopSignal(); stop != unix.SIGTRAP && stop != Wake {
		p.signal = int(stop)
	}
	return executed, nil
}

// singleStep is PTRACE_SINGLESTEP with a signal, which package unix does not offer.
func singleStep(pid, signal int) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SINGLESTEP, uintptr(pid), 0, uintptr(signal), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (p *Process) wait(status *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(p.PID, status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return p.ended(err)
		case status.Exited(), status.Signaled():
			return ErrEnded
		default:
			return nil
		}
	}
}

// read reads the registers.
func (p *Process) read() error {
	full := p.Registers[:cap(p.Registers)]
	iov := unix.Iovec{Base: &full[0]}
	iov.SetLen(len(full))
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(p.PID), unix.NT_PRSTATUS,
		uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return p.ended(errno)
	}
	p.Registers = full[:iov.Len]
	regs, err := p.arch.DecodePRStatus(p.Registers)
	if err != nil {
		return fmt.Errorf("steps: %w", err)
	}
	p.now.pc, _ = regs.Get(p.arch.PC)
	p.now.sp, _ = regs.Get(p.arch.SP)
	if p.calls.pushed == 0 {
		p.link, _ = regs.Get(p.arch.Index(uint64(p.arch.ReturnColumn)))
	}
	return nil
}

func (p *Process) ended(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ECHILD) {
		return ErrEnded
	}
	return fmt.Errorf("steps: process %d: %w", p.PID, err)
}

// kindAt decodes the instruction at an address, if it has not been there before.
func (p *Process) kindAt(pc uint64) (kind, error) {
	if k, known := p.kinds[pc]; known {
		return k, nil
	}
	var code [longest]byte
	n, err := p.Read(pc, code[:])
	if err != nil {
		return other, err
	}
	p.kinds[pc] = p.classify(code[:n])
	return p.kinds[pc], nil
}

// Forget discards decoded instructions, because other code may be mapped now.
func (p *Process) Forget() { clear(p.kinds) }

// Read reads the process's memory up to the first unreadable address.
func (p *Process) Read(addr uint64, dst []byte) (int, error) {
	local := unix.Iovec{Base: &dst[0]}
	local.SetLen(len(dst))
	n, err := unix.ProcessVMReadv(p.PID, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(dst)}}, 0)
	if err != nil {
		return 0, p.ended(err)
	}
	return n, nil
}
