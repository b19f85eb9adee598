// Package gostack captures the goroutines of Go programs, and follows the switches between the stacks of C and Go. It
// plans what a stop copies of a process, and walks the copies.
package gostack
