package e2e

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Some tests also run this test program beside the worker, as the server's user. The variable selects its role.
const (
	envHelper    = "PGSB_E2E_HELPER"
	helperTracer = "tracer" // trace the process given as argument until standard input ends
	helperFilter = "filter" // run the command given as arguments under a filter: no ptrace(2), no perf_event_open(2)
)

func tracer() int {
	runtime.LockOSThread()
	pid, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = unix.PtraceSeize(pid)
	}
	fmt.Fprintln(os.Stdout, err)
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	return 0 // the kernel detaches
}

func filter() int {
	runtime.LockOSThread()
	const number = 0 // offset of the number in struct seccomp_data
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PTRACE, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PERF_EVENT_OPEN, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f)), 0, 0)
	}
	if err == nil {
		err = os.Unsetenv(envHelper)
	}
	if err == nil {
		err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
