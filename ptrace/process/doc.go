// Package process identifies a process, and reads from it without stopping it. It has the parts that the packages that copy
// processes share: the description of the target, a handle that survives the reuse of a process id, the files of a process
// below /proc (proc(5)), functions that read memory, a limit of the threads that wait for a process that does not respond,
// and the reasons why the kernel denies access. It does not interpret the data that it reads.
//
// The observed process may have chosen every byte of the names and paths in its files below /proc. So the parsers have limits,
// and return errors instead of guessing.
package process
