package capture

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

// wakeStepped is a signal that only ends a step which waits in a system call.
const wakeStepped = unix.SIGCONT

// errSteppedEnded says that the process has ended.
var errSteppedEnded = errors.New("steps: the process has ended")

// errNotStepped says that processes are not stepped on this machine.
var errNotStepped = errors.New("steps: not on this architecture")

// A steppedProcess runs one instruction at a time (PTRACE_SINGLESTEP). Its call stack is derived from the executed
// instructions. A call is open until the process is back at the return address, or the stack pointer is beyond its value
// at the call. This method needs no call frame information, no frame pointer and no guess. It is correct between any two
// instructions, so the tests compare the stacks of captures with it. It must not know how stacks are unwound.
//
// It is for processes with one thread, on x86_64 and aarch64. The kernel cannot single-step on riscv64. On ppc64le an
// atomic sequence never ends while it is stepped. On s390x, as qemu emulates it, a stepped process loses saved
// registers and then fails.
//
// It is stopped between two instructions. Only the goroutine that has started or attached it may use it. This
// goroutine is locked to its operating system thread from then on.
type steppedProcess struct {
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
	now      codePlace
	link     uint64
	calls    calls
	kinds    map[uint64]kind
	signal   int // to be delivered with the next step
	command  *exec.Cmd
	free     []affinity
}

// steppedFrame is a frame of an attached process: the address where it continues, and its stack pointer there.
type steppedFrame struct{ PC, SP uint64 }

// newProcess returns a steppedProcess for this host's architecture.
func newProcess() (*steppedProcess, error) {
	a := arch.Host()
	if a == nil || classifiers[a.Instructions] == nil {
		return nil, errNotStepped
	}
	const size = 512 // more than any architecture has
	return &steppedProcess{
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
func (p *steppedProcess) pin(tids ...int) error {
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

// startStepped starts a program and stops it before its dynamic linker's first instruction.
func startStepped(command *exec.Cmd) (*steppedProcess, error) {
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

// attachStepped stops a process, which must have one thread. It calls the function frames for the frames of the
// process, innermost first.
func attachStepped(pid int, frames func(p *steppedProcess) ([]steppedFrame, error)) (*steppedProcess, error) {
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
		p.calls.begin(codePlace{known[i].PC, known[i].SP})
	}
	return p, err
}

// End detaches an attached process, and kills a started process.
func (p *steppedProcess) End() error {
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

func (p *steppedProcess) unpin() {
	for _, a := range p.free {
		_ = unix.SchedSetaffinity(a.tid, &a.set) // it may have ended
	}
	p.free = nil
}

// Stack returns the process's call stack, innermost first: the current address, and the return address of each call.
func (p *steppedProcess) Stack(dst []uint64) []uint64 {
	dst = append(dst, p.now.pc)
	for _, c := range slices.Backward(p.calls.open) {
		dst = append(dst, c.back.pc)
	}
	return dst
}

// PC returns the address of the next instruction.
func (p *steppedProcess) PC() uint64 { return p.now.pc }

// Step executes an instruction of the process, or begins a signal handler. The error is ErrEnded if the process has
// ended.
func (p *steppedProcess) Step() error {
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
		p.calls.begin(codePlace{before.pc + uint64(what), before.sp})
	default:
		p.Left = p.calls.settle(&step{kind: what, at: before.pc, now: p.now, link: p.link})
	}
	return nil
}

// entered reports whether the kernel has called a signal handler. Then the process is at another place, and the
// interrupted registers are on the stack. A signal without a handler leaves the instruction to be executed.
func (p *steppedProcess) entered(before codePlace) bool {
	const least = 256 // bytes, that no call takes
	return p.now.pc-before.pc > longestInstruction && before.sp > p.now.sp && before.sp-p.now.sp >= least
}

// handled records that a signal handler has begun. It returns to the code whose system call ends it.
func (p *steppedProcess) handled() error {
	if p.calls.pushed == 0 {
		p.calls.begin(codePlace{p.link, p.now.sp})
		return nil
	}
	var word [8]byte
	if _, err := p.Read(p.now.sp, word[:]); err != nil {
		return err
	}
	p.calls.begin(codePlace{p.arch.Order.Uint64(word[:]), p.now.sp + p.calls.pushed})
	return nil
}

// resume lets the process run one step, and waits for it. A signal that stops the process is delivered with the next
// step, except for Wake. The result reports whether the process executed another program.
func (p *steppedProcess) resume() (executed bool, err error) {
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
	if stop := status.StopSignal(); stop != unix.SIGTRAP && stop != wakeStepped {
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

func (p *steppedProcess) wait(status *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(p.PID, status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return p.ended(err)
		case status.Exited(), status.Signaled():
			return errSteppedEnded
		default:
			return nil
		}
	}
}

// read reads the registers.
func (p *steppedProcess) read() error {
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

func (p *steppedProcess) ended(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ECHILD) {
		return errSteppedEnded
	}
	return fmt.Errorf("steps: process %d: %w", p.PID, err)
}

// kindAt decodes the instruction at an address, if it has not been there before.
func (p *steppedProcess) kindAt(pc uint64) (kind, error) {
	if k, known := p.kinds[pc]; known {
		return k, nil
	}
	var code [longestInstruction]byte
	n, err := p.Read(pc, code[:])
	if err != nil {
		return plainKind, err
	}
	p.kinds[pc] = p.classify(code[:n])
	return p.kinds[pc], nil
}

// Forget discards decoded instructions, because other code may be mapped now.
func (p *steppedProcess) Forget() { clear(p.kinds) }

// Read reads the process's memory up to the first unreadable address.
func (p *steppedProcess) Read(addr uint64, dst []byte) (int, error) {
	local := unix.Iovec{Base: &dst[0]}
	local.SetLen(len(dst))
	n, err := unix.ProcessVMReadv(p.PID, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(dst)}}, 0)
	if err != nil {
		return 0, p.ended(err)
	}
	return n, nil
}
