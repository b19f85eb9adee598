// Package thread has the settings of the thread that stops a process. ARCHITECTURE.md gives the reasons.
//
// The Go scheduler sees a stop of the target as one system call. The package has the entry and the exit of that call, a
// function that reads a flag set by another goroutine, and the thread's priority. Between EnterSyscall and ExitSyscall, the
// caller and all functions that it calls must be nosplit, and must not store pointers.
//
// It also counts the captures, observations and batches of samples that must end before this program is suspended. A
// suspended program would leave its target stopped, or an event enabled. The package does not know what the work is.
package thread
