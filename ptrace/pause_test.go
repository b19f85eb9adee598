//go:build !arm64 && !riscv64

package ptrace

import "golang.org/x/sys/unix"

// sysPause is the system call that the C library's pause() makes.
const sysPause = unix.SYS_PAUSE
