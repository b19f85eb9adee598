package steps

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/arch/x86/x86asm"
	"golang.org/x/sys/unix"
)

// Wake is a signal that ends a step which waits in a system call, and does nothing else.
const Wake = unix.SIGCONT

// ErrEnded says that the process has ended.
var ErrEnded = errors.New("steps: the process has ended")

// Process is a process that stands still between two instructions. Only the goroutine that has started or attached it
// may use it: that one has an operating system thread of its own from then on.
type Process struct {
	// PID is its process id.
	PID int
	// Regs are its registers.
	Regs unix.PtraceRegs
	// Called is set when its last step was a system call, and what it was called with are Before.
	Called bool
	Before unix.PtraceRegs
	// Remapped is set when it has made a system call that changes its mappings; the caller may unset it.
	Remapped bool

	calls   []call // outermost first
	kinds   map[uint64]kind
	signal  int // to be delivered with the next step
	command *exec.Cmd
	free    []affinity
}

// affinity is the processors that a thread may use.
type affinity struct {
	tid int
	set unix.CPUSet
}

// pin has the threads run on one processor: that another one has to be woken up makes a step ten times as long.
func (p *Process) pin(tids ...int) error {
	for _, tid := range tids {
		before := affinity{tid: tid}
		if err := unix.SchedGetaffinity(tid, &before.set); err != nil {
			return fmt.Errorf("steps: %w", err)
		}
		if len(p.free) == 0 {
			p.free = append(p.free, before)
		}
		var one unix.CPUSet
		for cpu := 0; ; cpu++ {
			if p.free[0].set.IsSet(cpu) {
				one.Set(cpu)
				break
			}
		}
		if err := unix.SchedSetaffinity(tid, &one); err != nil {
			return fmt.Errorf("steps: %w", err)
		}
		if tid != p.free[0].tid {
			p.free = append(p.free, before)
		}
	}
	return nil
}

// call is a return address, and where on the stack it lies.
type call struct{ slot, back uint64 }

// Frame is a frame of a process that is attached: where it goes on, and its canonical frame address.
type Frame struct{ PC, CFA uint64 }

// kind is what an instruction does to the stack of calls; its length, where it is a call.
type kind int8

const (
	other  kind = 0
	system kind = -1 // a call of the kernel
)

// Start starts a program, which stands before its dynamic linker's first instruction.
func Start(command *exec.Cmd) (*Process, error) {
	runtime.LockOSThread()
	if command.SysProcAttr == nil {
		command.SysProcAttr = &unix.SysProcAttr{}
	}
	command.SysProcAttr.Ptrace = true
	p := &Process{kinds: make(map[uint64]kind), command: command}
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
	return p, p.read()
}

// Attach stops a process, which has to have one thread, and asks for the frames that it has, innermost first.
func Attach(pid int, frames func(regs *unix.PtraceRegs) ([]Frame, error)) (*Process, error) {
	runtime.LockOSThread()
	p := &Process{PID: pid, kinds: make(map[uint64]kind)}
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
	known, err := frames(&p.Regs)
	for i := len(known) - 1; i > 0; i-- {
		const slot = 8
		p.calls = append(p.calls, call{known[i-1].CFA - slot, known[i].PC})
	}
	return p, err
}

// End lets a process go that was attached, and ends one that was started.
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

// Stack is the process's call stack, innermost first: where it stands, and where each call returns to.
func (p *Process) Stack(dst []uint64) []uint64 {
	dst = append(dst, p.Regs.Rip)
	for i := len(p.calls) - 1; i >= 0; i-- {
		dst = append(dst, p.calls[i].back)
	}
	return dst
}

// Step has the process execute an instruction, or begin a signal handler. The error is ErrEnded when it has ended.
func (p *Process) Step() error {
	p.Before = p.Regs
	before := &p.Before
	what, err := p.kindAt(before.Rip)
	if err != nil {
		return err
	}
	delivered := p.signal
	if err := p.resume(); err != nil {
		return err
	}
	if err := p.read(); err != nil {
		return err
	}
	p.Called = what == system && p.Regs.Rip == before.Rip+2
	switch {
	case delivered != 0 && p.Regs.Rsp < before.Rsp:
		// The kernel has put the frame of a handler onto the stack, with what it returns to on top.
		back, err := p.word(p.Regs.Rsp)
		if err != nil {
			return err
		}
		const slot = 8
		p.calls = append(p.calls, call{p.Regs.Rsp + slot, before.Rip}, call{p.Regs.Rsp, back})
	case p.Regs.Rip == before.Rip && p.Regs.Rsp == before.Rsp: // a signal came first, or the instruction repeats itself
	case what > 0:
		p.calls = append(p.calls, call{p.Regs.Rsp, before.Rip + uint64(what)})
	case what == system && before.Rax == unix.SYS_EXECVE && p.Regs.Rax == 0:
		p.calls, p.Remapped = nil, true
	case what == system:
		p.Remapped = p.Remapped || remaps(before.Rax)
	}
	for n := len(p.calls); n > 0 && p.calls[n-1].slot < p.Regs.Rsp; n-- {
		p.calls = p.calls[:n-1]
	}
	return nil
}

// remaps reports whether a system call may change which code is mapped.
func remaps(number uint64) bool {
	return number == unix.SYS_MMAP || number == unix.SYS_MUNMAP || number == unix.SYS_MPROTECT || number == unix.SYS_MREMAP
}

// resume has the process go one step, and waits for it. What signal has stopped it is delivered with the next one, but
// for Wake.
func (p *Process) resume() error {
	signal := p.signal
	p.signal = 0
	var status unix.WaitStatus
	// That Wake was sent stops the process once more, before the end of the step is told.
	for stopped := false; !stopped; stopped = status>>16 != unix.PTRACE_EVENT_STOP {
		if err := step(p.PID, signal); err != nil {
			return p.ended(err)
		}
		if err := p.wait(&status); err != nil {
			return err
		}
		signal = 0
	}
	if stop := status.StopSignal(); stop != unix.SIGTRAP && stop != Wake {
		p.signal = int(stop)
	}
	return nil
}

// step is PTRACE_SINGLESTEP with a signal, which package unix does not offer.
func step(pid, signal int) error {
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

func (p *Process) read() error {
	if err := unix.PtraceGetRegs(p.PID, &p.Regs); err != nil {
		return p.ended(err)
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
	const longest = 15
	var code [longest]byte
	n, err := p.Read(pc, code[:])
	if err != nil {
		return other, err
	}
	k := other
	x, _ := x86asm.Decode(code[:n], 64) // what it does not know is newer, and no call
	switch x.Op {
	case x86asm.CALL:
		k = kind(x.Len)
	case x86asm.SYSCALL:
		k = system
	default:
	}
	p.kinds[pc] = k
	return k, nil
}

// Forget has instructions decoded anew, since other code may be mapped now.
func (p *Process) Forget() { clear(p.kinds) }

func (p *Process) word(addr uint64) (uint64, error) {
	var b [8]byte
	if n, err := p.Read(addr, b[:]); err != nil || n < len(b) {
		return 0, fmt.Errorf("steps: process %d: no word at %#x: %w", p.PID, addr, err)
	}
	var v uint64
	for i := len(b) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v, nil
}

// Read reads the process's memory up to where it has none.
func (p *Process) Read(addr uint64, dst []byte) (int, error) {
	local := unix.Iovec{Base: &dst[0]}
	local.SetLen(len(dst))
	n, err := unix.ProcessVMReadv(p.PID, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(dst)}}, 0)
	if err != nil {
		return 0, p.ended(err)
	}
	return n, nil
}
