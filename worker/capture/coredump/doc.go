// Package coredump reads and names the stacks of a core file. It uses the files that the core names, and the memory
// in it.
package coredump
