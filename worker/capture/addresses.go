package capture

import (
	"os"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/arch"
)

// forAddresses returns the architecture with what is no part of an address on this machine: the kernel's choice, the
// same for this process as for others.
func forAddresses(host *arch.Arch) *arch.Arch {
	maps, err := procfs.Maps(os.Getpid())
	if err != nil || len(maps) == 0 {
		return host
	}
	top := maps[len(maps)-1].End
	if host.CodeMask != 0 {
		top = max(top, highest())
	}
	return host.ForAddresses(top)
}

// highest is the end of a page as high up as the kernel gives one. With addresses of 52 bits it gives such only to who
// asks for them (Documentation/arch/arm64/memory.rst), and to the code of return probes; 0: none.
func highest() uint64 {
	const wish = 1 << 51 // a hint, which a kernel with shorter addresses leaves aside
	size := uintptr(os.Getpagesize())
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, wish, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS,
		^uintptr(0), 0)
	if errno != 0 {
		return 0
	}
	_, _, _ = unix.Syscall(unix.SYS_MUNMAP, at, size, 0)
	return uint64(at + size)
}
