package waits

import "golang.org/x/sys/unix"

// callPrefix is the beginning of the name of the kernel function of a system call.
const callPrefix = "__x64_sys_"

// olderCalls returns the system calls to time that newer architectures do not have.
func olderCalls() []call {
	return []call{
		{name: "poll", number: unix.SYS_POLL}, {name: "select", number: unix.SYS_SELECT},
		{name: "epoll_wait", number: unix.SYS_EPOLL_WAIT, inner: epollWait},
	}
}

// ordersStores is true if other processors see the stores of a processor in the order of the program.
const ordersStores = true
