package bpf

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// UprobeLink attaches a program to instructions of a file. It is what BPF_LINK_CREATE takes of union bpf_attr
// (linux/bpf.h) for uprobe_multi. Path, Offsets, Counters and Cookies are addresses. PID 0 means all processes.
type UprobeLink struct {
	Program, _, AttachType, _        uint32
	Path, Offsets, Counters, Cookies uint64
	Count, Flags, PID, _             uint32
}

// Create returns the descriptor of the link.
func (l *UprobeLink) Create() (fd int, errno unix.Errno) {
	const commandLinkCreate = 28
	r, _, errno := unix.Syscall(unix.SYS_BPF, commandLinkCreate, uintptr(unsafe.Pointer(l)), unsafe.Sizeof(*l))
	return int(r), errno
}

// CheckUprobes returns an error if the kernel cannot attach a loaded program by uprobe_multi.
func CheckUprobes(program int, attachType uint32) error {
	return judgeUprobes(tryUprobe(program, attachType, 0))
}

// tryUprobe tries to attach a program to a directory, for a process or all of them. The kernel refuses that always.
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

// judgeUprobes returns an error if the answer to tryUprobe means that the kernel cannot attach the program. A kernel
// that can attach it looks at the path, and answers EBADF. An older kernel, which does not know uprobe_multi, answers
// EINVAL.
func judgeUprobes(answer unix.Errno) error {
	switch answer {
	case unix.EBADF:
		return nil
	case unix.EOPNOTSUPP:
		return fmt.Errorf("the kernel was built without CONFIG_UPROBES: %w", unix.ENOSYS)
	case 0:
		return fmt.Errorf("the kernel attaches a program to a directory: %w", unix.ENOSYS)
	}
	return answer
}

// Address returns the address of a value for a structure of the kernel. The caller pins the value.
func Address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }
