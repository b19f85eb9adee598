package waits

// callPrefix is the beginning of the name of the kernel function of a system call.
const callPrefix = "__arm64_sys_"

// olderCalls returns the system calls to time that newer architectures, such as this one, do not have.
func olderCalls() []call { return nil }

// ordersStores is true if other processors see the stores of a processor in the order of the program.
const ordersStores = false
