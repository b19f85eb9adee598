//go:build arm64 || riscv64

package ptrace

import "golang.org/x/sys/unix"

// sysPause is the system call of the C library's pause(). These architectures have no system call of that name.
const sysPause = unix.SYS_PPOLL
