package observe

import (
	"bytes"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// A sleeping thread can be read without a stop, because the kernel shows two facts about it. /proc/PID/syscall shows a system
// call only for a thread that is off the CPU (task_current_syscall in lib/syscall.c waits for that). The kernel also counts
// how often a thread leaves the CPU.
//
// The observer reads the counts first and last, and the system call twice in between. The thread was off the CPU at
// both reads of the system call. If the thread ran between these two reads, it also left the CPU between them, and a count
// changed. Equal counts therefore mean that it did not run at all. So its registers did not change, and its stack only if
// another thread or process wrote to it: a tracer, or a child of vfork that runs on the same stack. The observer detects
// such changes by copying the stack twice.

// look is the state of a thread that can be read without a stop.
type look struct {
	call                   process.Syscall
	voluntary, involuntary uint64
}

// blocked copies a sleeping thread and, for a main thread, the extra reads. errAwake: the thread does not sleep. errMoved: it
// woke up, or its stack was changed, during the copy.
func (w *observer) blocked(tid int) (snapshot.Thread, error) {
	pid := w.target.PID
	thread := snapshot.Thread{TID: tid}
	status, err := w.status(tid)
	if err != nil {
		return thread, process.ReadError(w.target.PID, tid, err)
	}
	thread.Name, thread.State = status.Name, status.State
	if process.IsDead(status.State) {
		return thread, process.Exited(tid)
	}
	first := look{voluntary: status.VoluntarySwitches, involuntary: status.InvoluntarySwitches}
	if first.call, err = process.ReadSyscall(pid, tid); err != nil {
		return thread, process.ReadError(w.target.PID, tid, err)
	}
	if first.call.Running || w.asleep && (status.State != 'S' || status.TracerPID != 0) {
		return thread, errAwake
	}
	var also []snapshot.Stack
	for range 2 {
		stack, pieces, err := w.copyStack(tid, first.call.SP)
		if err != nil {
			return thread, err
		}
		if thread.Stack.Data != nil && (!same(stack, thread.Stack) || !slices.EqualFunc(pieces, also, same)) {
			return thread, errMoved
		}
		thread.Stack, also = stack, pieces
	}
	if thread.State == 'D' {
		thread.WaitChannel, thread.KernelStack = process.KernelPlace(pid, tid)
	}
	var found []snapshot.Stack
	if tid == pid {
		found = w.follow(tid, &thread.Stack)
	}
	if err := w.lookAgain(tid, &first); err != nil {
		return thread, err
	}
	thread.Syscall, thread.Switches = &first.call, first.voluntary+first.involuntary
	if len(thread.Stack.Data) == 0 {
		thread.Stack = snapshot.Stack{}
		thread.Err = snapshot.ErrNoStack
	}
	if tid == pid {
		w.also, w.found = also, found
	}
	return thread, nil
}

// status returns the status of a thread. For the main thread, it uses the status in Target.Proof as long as the proof holds.
// But Asleep must find a tracer that has attached since the proof, so it always reads the status.
func (w *observer) status(tid int) (process.Status, error) {
	if p := w.target.Proof; tid == w.target.PID && !w.asleep && p.Holds() {
		return p.Status, nil
	}
	return process.ReadTaskStatus(w.target.PID, tid)
}

func same(a, b snapshot.Stack) bool { return a.Start == b.Start && bytes.Equal(a.Data, b.Data) }

// lookAgain returns errMoved if the thread may have run since the first look.
func (w *observer) lookAgain(tid int, first *look) error {
	call, err := process.ReadSyscall(w.target.PID, tid)
	if err != nil {
		return process.ReadError(w.target.PID, tid, err)
	}
	if tid == w.target.PID && call == first.call && w.target.Proof.Holds() {
		return nil
	}
	status, err := process.ReadTaskStatus(w.target.PID, tid)
	switch {
	case err != nil:
		return process.ReadError(w.target.PID, tid, err)
	case process.IsDead(status.State):
		return process.Exited(tid)
	case call != first.call, status.VoluntarySwitches != first.voluntary,
		status.InvoluntarySwitches != first.involuntary:
		return errMoved
	}
	return nil
}

// copyStack copies the stack at sp and the stacks in Options.Also.
func (w *observer) copyStack(tid int, sp uint64) (stack snapshot.Stack, also []snapshot.Stack, err error) {
	if stack, err = w.copyAround(tid, sp); err != nil {
		return snapshot.Stack{}, nil, err
	}
	for _, address := range w.options.Also[:min(len(w.options.Also), snapshot.MaxAlso)] {
		piece, err := w.copyAround(tid, address)
		if err != nil {
			return snapshot.Stack{}, nil, err
		}
		if len(piece.Data) > 0 {
			also = append(also, piece)
		}
	}
	return stack, also, nil
}

// copyAround copies the stack to which sp points, from its red zone on, at most Options.MaxStack bytes. It copies nothing if sp
// is in no stack.
func (w *observer) copyAround(tid int, sp uint64) (snapshot.Stack, error) {
	start, end, ok := snapshot.StackIn(w.maps, sp, uint64(w.options.RedZone))
	if !ok {
		return snapshot.Stack{}, nil
	}
	size := min(end-start, uint64(w.options.MaxStack))
	data := make([]byte, size)
	n, err := process.ReadMemory(tid, start, data)
	switch {
	case err == nil, errors.Is(err, unix.EFAULT):
	case errors.Is(err, process.ErrNotPermitted), errors.Is(err, process.ErrTraced):
		return snapshot.Stack{}, process.Denied(w.target.PID, tid)
	default:
		return snapshot.Stack{}, err
	}
	return snapshot.Stack{Start: start, Data: data[:n], Cut: uint64(n) < end-start}, nil
}
