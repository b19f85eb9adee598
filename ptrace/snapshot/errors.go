package snapshot

import "errors"

// The values of Thread.Err besides the errors of Capture and Observe.
var (
	// ErrNoStack: the registers were read but not the stack, because the stack pointer is invalid.
	ErrNoStack = errors.New("no readable stack at the stack pointer")
	// ErrKernelWorker: the kernel has added the thread to the process, see process.Stat.Worker. Such threads are not
	// stopped and not sampled.
	ErrKernelWorker = errors.New("a thread of the kernel, which has no user stack")
)
