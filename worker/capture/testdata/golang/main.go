// Command golang goes down twenty calls, some of them inlined, and waits there for its standard input, on its first
// thread.
package main

import (
	"os"
	"runtime"
	"syscall"
)

func init() { runtime.LockOSThread() }

//go:noinline
func descend(n int) int {
	if n == 0 {
		return outer()
	}
	return descend(n-1) + 1
}

func outer() int { return middle() + 1 }

func middle() int { return wait() + 1 }

//go:noinline
func wait() int {
	n, _ := syscall.Read(0, make([]byte, 1))
	return n
}

func main() {
	os.Exit(descend(20))
}
