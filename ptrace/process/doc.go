// Package process identifies a process, and reads from it without stopping it. It has what the packages that copy
// processes have in common: the description of the target, a handle that survives the reuse of a process id, the files
// of a process below /proc (proc(5)), reads of memory, a limit of the threads that wait for a process that does not
// respond, and the reasons why the kernel denies access. It does not know the copied data.
//
// The observed process may have chosen every byte of the names and paths in these files. The parsers are therefore
// bounded, and return errors instead of guessing.
package process
