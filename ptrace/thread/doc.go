// Package nosched has what code needs that is one system call to the Go scheduler: the entry and the exit of that call,
// a flag that another goroutine sets, and the thread's priority. ARCHITECTURE.md gives the reasons. Between
// EnterSyscall and ExitSyscall, the caller and all functions that it calls must be nosplit, and must not store
// pointers.
package nosched
