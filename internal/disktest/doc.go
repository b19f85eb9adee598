// Package disktest has file systems and root directories for tests: a file whose readers sleep uninterruptibly, and a
// process with a root directory of its own. It must not know who reads the files.
package disktest
