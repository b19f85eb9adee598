package waits

import "golang.org/x/sys/unix"

// callPrefix stands before the name of a system call in the name of the kernel's function.
const callPrefix = "__x64_sys_"

// olderCalls returns system calls that newer architectures do not have.
func olderCalls() []call {
	return []call{
		{name: "poll", number: unix.SYS_POLL}, {name: "select", number: unix.SYS_SELECT},
		{name: "epoll_wait", number: unix.SYS_EPOLL_WAIT, inner: epollWait},
	}
}

// ordersStores says whether other processors see stores in the order of the program.
const ordersStores = true
