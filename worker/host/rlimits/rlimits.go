// Package rlimits verifies that the limits of this process leave enough to run. If a limit is too low, the Go runtime
// prints a dump of its goroutines, without the name of the limit. This package prints one line and ends the process
// with status 1.
//
// It also handles closed standard descriptors. The Go runtime opens /dev/null for them, and ends with a dump if there
// is no /dev/null. The function in assembly opens /dev/null first. It opens it for reading only: a command whose output
// is lost then fails, as it must.
//
// The package verifies twice. With -ldflags=-E=pg_stat_backtrace_start, which `make build` sets, the kernel starts the
// program at a function in assembly, before the Go runtime needs memory and threads (amd64 and arm64). After the start
// of the runtime, init verifies again, and counts the descriptors that are left. Go runs init functions in the order of
// their packages' import paths as soon as their imports are ready. So this package imports only syscall: its init then
// runs before package os, and before every package that opens a file in its init.
package rlimits

import "syscall"

const (
	// Descriptors is the number of file descriptors that a command needs.
	Descriptors = 24
	// Memory is the lowest limit of the address space, in bytes, with which a command runs.
	Memory = 1536 << 20
	// Reserved is the part of the address space, in bytes, that the Go runtime reserves at its start and does not use.
	// If less is left, the runtime reserves half of it, and then some programs start and others end with a dump.
	Reserved = 1280 << 20
	// Data is the lowest limit of writable private memory, in bytes, with which a command runs.
	Data = 256 << 20
	// Threads is the number of threads that the user of a command must be able to start.
	Threads = 32
	// stack is the lowest limit of the first thread's stack, in bytes, with which a command runs.
	stack = 256 << 10
)

const (
	tooLow = "pg_stat_backtrace: limit is too low: "
	remedy = "; raise it with "
)

// floor is the lowest accepted value of one limit, and the message for a lower value. The functions in assembly read
// it.
type floor struct {
	resource uint64
	least    uint64
	message  string
}

const (
	rlimitNproc    = 6
	rlimitInfinity = 1<<64 - 1
	floorCount     = 4

	standardDescriptors = 3 //nolint:unused // the assembly uses it
)

var floors = [floorCount]floor{
	{syscall.RLIMIT_AS, Memory, tooLow +
		"address space (RLIMIT_AS) is below 1536 MB" + remedy + "\"ulimit -v unlimited\"\n"},
	{syscall.RLIMIT_DATA, Data, tooLow +
		"data (RLIMIT_DATA) is below 256 MB" + remedy + "\"ulimit -d unlimited\"\n"},
	{syscall.RLIMIT_STACK, stack, tooLow +
		"stack (RLIMIT_STACK) is below 256 KB" + remedy + "\"ulimit -s 8192\"\n"},
	{syscall.RLIMIT_NOFILE, Descriptors, tooLow +
		"open files (RLIMIT_NOFILE) are below 24" + remedy + "\"ulimit -n 1024\"\n"},
}

// threads is the message if the user cannot start Threads more threads.
//
//nolint:unused // the assembly uses it
var threads = tooLow + "this user or control group cannot start 32 more threads (RLIMIT_NPROC, TasksMax)" +
	remedy + "\"ulimit -u unlimited\"\n"

// devNull is opened for standard descriptors that are closed; closed is the message if that fails. The zero byte ends
// the path for the kernel.
//
//nolint:unused // the assembly uses them
var (
	devNull = "/dev/null\x00"
	closed  = "pg_stat_backtrace: a standard descriptor is closed, and /dev/null cannot be opened\n"
)

const (
	fewDescriptors = tooLow + "this process cannot open 24 more files (RLIMIT_NOFILE)" + remedy + "\"ulimit -n 1024\"\n"
	fullSystem     = tooLow + "the system cannot open more files; raise the kernel setting fs.file-max\n"
)

func init() { //nolint:gochecknoinits // the package comment gives the reason
	for i := range floors {
		f := &floors[i]
		var l syscall.Rlimit
		if syscall.Getrlimit(int(f.resource), &l) == nil && l.Cur < f.least {
			fail(f.message)
		}
	}
	descriptors()
}

// descriptors opens Descriptors files, and closes them. It is not enough to check the limit, because descriptors that
// this process inherited use a part of it.
func descriptors() {
	const path = 0x200000 // O_PATH
	var opened [Descriptors]int
	for i := range opened {
		fd, err := syscall.Open("/", path|syscall.O_CLOEXEC, 0)
		switch err {
		case nil:
			opened[i] = fd
			continue
		case syscall.EMFILE:
			fail(fewDescriptors)
		case syscall.ENFILE:
			fail(fullSystem)
		}
		break // other errors do not come from a limit, and the command reports them
	}
	for _, fd := range opened {
		if fd > 0 {
			_ = syscall.Close(fd)
		}
	}
}

// fail prints message and ends the process. Packages with better means are not initialised yet.
func fail(message string) {
	_, _ = syscall.Write(2, []byte(message))
	syscall.Exit(1)
}
