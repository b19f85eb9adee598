package process

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadMemory copies memory of a process from addr on into p, without stopping the process (process_vm_readv(2)). This
// process needs the same rights as for a capture. It returns the number of bytes before the first unreadable page. The error
// is nil if p is full, otherwise unix.EFAULT wrapped with the address, ErrExited, or ErrNotPermitted.
//
// ReadMemory may never return: see ProbeReadable. Call it only in a function with a timeout, for example in WithTimeout
// or Each. Otherwise use a Memory. TestReadsAreGuarded lists its callers.
func ReadMemory(pid int, addr uint64, p []byte) (int, error) {
	if pid <= 0 || pid > maxPID {
		return 0, fmt.Errorf("process %d: %w", pid, ErrInvalidPID)
	}
	done, thread := 0, pid
	for done < len(p) {
		at := addr + uint64(done)
		if at < addr || uint64(len(p)-done) > math.MaxUint64-at {
			return done, fmt.Errorf("process %d: read memory at 0x%x: %w", pid, at, unix.EFAULT)
		}
		n, errno := readOnce(thread, at, p[done:])
		switch {
		case errno == 0 && n > 0:
			done += n
		case errno == unix.EINTR:
		case errno == unix.ESRCH:
			// The memory of a process outlives its main thread, and can then be reached through another thread.
			if thread == pid {
				thread = LiveThread(pid)
			} else {
				thread = pid
			}
			if thread == pid {
				return done, Exited(pid)
			}
		case errno == unix.EPERM:
			return done, Explain(pid, pid)
		default:
			return done, fmt.Errorf("process %d: read memory at 0x%x: %w", pid, at, errno)
		}
	}
	return done, nil
}

// readOnce makes one process_vm_readv call. The system call reads at most INT_MAX bytes, rounded down to pages.
func readOnce(pid int, addr uint64, p []byte) (int, unix.Errno) {
	local := unix.Iovec{Base: &p[0]}
	local.SetLen(len(p))
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(p)}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1,
		uintptr(unsafe.Pointer(&remote)), 1, 0)
	return int(n), errno
}

// ProbeReadable waits until the memory of a process can be read. The kernel locks an address space for every access to it.
// If one thread has the lock while it waits for a disk, and another thread waits to change the mappings, no other process
// can read the memory. process_vm_readv(2) then waits in such a way that even SIGKILL does not end the wait. A
// stopped target would stay stopped for as long. A read of /proc/PID/mem waits too, but SIGKILL can end it. So ProbeReadable
// tries to read a byte of this file.
//
// ProbeReadable returns when the memory can be read, or when the read is not permitted. It may never return.
func ProbeReadable(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // the capture reports the missing permission later
	}
	defer func() { _ = unix.Close(fd) }()
	var b [1]byte
	_, _ = unix.Pread(fd, b[:], anyAddress) // the address need not be mapped
}

// anyAddress is an address at which no process can map memory: a process could map a page there that never arrives.
const anyAddress = 1 << 62

// ErrUnreachable means that the kernel does not return from reading the process's memory. Its text has both possible causes.
var ErrUnreachable = errors.New("the kernel does not return from reading its memory: a thread holds the lock of its " +
	"address space, or the provider of a page does not answer")
