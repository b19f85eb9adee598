//go:build arm64 || riscv64

package ptrace

import "golang.org/x/sys/unix"

// sysPause is the system call that the C library's pause() makes: these have none of that name.
const sysPause = unix.SYS_PPOLL
