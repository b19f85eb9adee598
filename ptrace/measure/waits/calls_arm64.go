package waits

// callPrefix is the beginning of the name of the kernel function of a system call.
const callPrefix = "__arm64_sys_"

// olderCalls returns system calls that newer architectures do not have.
func olderCalls() []call { return nil }

// ordersStores is true if other processors see the stores of a processor in the order of the program.
const ordersStores = false
