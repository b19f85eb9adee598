// Package coredump names the stacks of a core file, by the files that the core names and by its own memory.
package coredump
