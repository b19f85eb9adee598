// Package disktest has file systems for tests: a file whose readers sleep uninterruptibly, and a process with a separate
// root directory. It must not know the readers of the files.
package disktest
