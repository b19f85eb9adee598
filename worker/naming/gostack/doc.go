// Package gostack captures the goroutines of Go programs, and follows the switches between the stacks of C and Go. It
// plans which memory a stop copies, and walks the copies.
package gostack
