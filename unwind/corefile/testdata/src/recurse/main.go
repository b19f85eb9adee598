// Command recurse ends by SIGABRT in a recursion, with its runtime's other threads at work.
package main

import (
	"os"
	"runtime/debug"
	"syscall"
	"time"
)

//go:noinline
func deep(n int) int {
	if n == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGABRT)
		time.Sleep(time.Second)
		return 1
	}
	return deep(n-1) + 1
}

func main() {
	debug.SetTraceback("crash")
	go func() { select {} }()
	os.Exit(deep(4))
}
