package capture

import (
	"os"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
)

// forAddresses returns the host's architecture, with the address size that the kernel uses for all processes.
func forAddresses(host *arch.Arch) *arch.Arch {
	maps, err := process.Maps(os.Getpid())
	if err != nil || len(maps) == 0 {
		return host
	}
	top := maps[len(maps)-1].End
	if host.CodeMask != 0 {
		top = max(top, highest())
	}
	return host.ForAddresses(top)
}

// highest returns the end of the highest page that the kernel grants, or 0 if it grants none. On arm64 with 52-bit
// addresses, the kernel uses the highest addresses only on request (Documentation/arch/arm64/memory.rst) and for the
// code of return probes.
func highest() uint64 {
	const wish = 1 << 51 // a hint, which a kernel with shorter addresses ignores
	size := uintptr(os.Getpagesize())
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, wish, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS,
		^uintptr(0), 0)
	if errno != 0 {
		return 0
	}
	_, _, _ = unix.Syscall(unix.SYS_MUNMAP, at, size, 0)
	return uint64(at + size)
}
