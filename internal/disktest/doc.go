// Package disktest has file systems for tests: small ones with little room, few inodes or errors, a file whose readers sleep
// uninterruptibly, and a process with a separate root directory. A test is skipped if this process may not mount file systems. The
// package must not know the readers of the files.
package disktest
