package bpf

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// UprobeLink attaches a BPF program to instructions of a file. It is the part of union bpf_attr (linux/bpf.h) that the
// command BPF_LINK_CREATE uses for uprobe_multi. Path, Offsets, Counters and Cookies are addresses of the values. PID 0
// means all processes.
type UprobeLink struct {
	Program, _, AttachType, _        uint32
	Path, Offsets, Counters, Cookies uint64
	Count, Flags, PID, _             uint32
}

// Create attaches the program and returns the file descriptor of the link.
func (l *UprobeLink) Create() (fd int, errno unix.Errno) {
	const commandLinkCreate = 28
	r, _, errno := unix.Syscall(unix.SYS_BPF, commandLinkCreate, uintptr(unsafe.Pointer(l)), unsafe.Sizeof(*l))
	return int(r), errno
}

// Uprobes has properties of uprobe_multi, the kernel's method to attach a BPF program to many instructions, in the running
// kernel.
type Uprobes struct {
	// MainThreadOnly means that a link for one process runs the program for the main thread only. Hits of the other
	// threads are not counted. This is so in kernels without commit 46ba0e49b642: before Linux 6.6.35, 6.9.5 and 6.10. A
	// link for all processes (PID 0) runs the program for every thread.
	MainThreadOnly bool
}

// FindUprobes returns the properties of the running kernel's uprobe_multi for a loaded program. It returns an error if the
// kernel cannot attach the program by uprobe_multi.
func FindUprobes(program int, attachType uint32) (Uprobes, error) {
	const none = 1<<32 - 1 // pid_t -1
	return judgeUprobes(tryUprobe(program, attachType, 0), tryUprobe(program, attachType, none))
}

// CheckThreads returns an error if hits of some threads of a process would not be counted. It ignores the threads that the
// kernel has added to the process for io_uring, because they run no code of the process.
func (u Uprobes) CheckThreads(pid int) error {
	if !u.MainThreadOnly {
		return nil
	}
	stat, err := process.ReadStat(pid)
	if err != nil || stat.Threads <= 1 {
		return nil //nolint:nilerr // a process that has ended has no threads
	}
	tids, _ := process.Threads(pid)
	n := 0
	for _, tid := range tids {
		if stat, err := process.ReadTaskStat(pid, tid); err == nil && !stat.Worker() {
			n++
		}
	}
	if n <= 1 {
		return nil
	}
	return fmt.Errorf("process %d has %d threads, and Linux %s counts only calls of the main thread: "+
		"a later kernel is needed (6.6.35, 6.9.5, 6.10)", pid, n, Release())
}

// tryUprobe tries to attach a program to a directory, which every kernel refuses, and returns the error. pid 0 means
// all processes.
func tryUprobe(program int, attachType, pid uint32) unix.Errno {
	var offset uint64
	path := [...]byte{'/', 0}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&offset)
	pin.Pin(&path)
	l := UprobeLink{
		Program: uint32(program), AttachType: attachType, Path: Address(&path), Offsets: Address(&offset), Count: 1,
		PID: pid,
	}
	fd, errno := l.Create()
	if errno == 0 {
		_ = unix.Close(fd)
	}
	return errno
}

// judgeUprobes interprets two results of tryUprobe: all is the result for all processes, and negative the result for
// process -1. A kernel that can attach the program checks the path, and answers EBADF. An older kernel, which does not know
// uprobe_multi, answers EINVAL.
//
// A kernel with commit 46ba0e49b642 refuses a negative PID with EINVAL, before it checks the path. A kernel without that
// commit answers EBADF for it, and runs the program for the main thread only.
func judgeUprobes(all, negative unix.Errno) (u Uprobes, err error) {
	switch all {
	case unix.EBADF:
		return Uprobes{MainThreadOnly: negative != unix.EINVAL}, nil
	case unix.EOPNOTSUPP:
		return u, fmt.Errorf("the kernel was built without CONFIG_UPROBES: %w", unix.ENOSYS)
	case 0:
		return u, fmt.Errorf("the kernel attaches a program to a directory: %w", unix.ENOSYS)
	}
	return u, all
}

// Address returns the address of a value, to be stored in a structure of the kernel's interface. The caller pins the value.
func Address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }
