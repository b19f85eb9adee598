// Command gogrow makes its first thread use stacks other than a goroutine's most of the time. It grows the stacks of
// goroutines, handles signals, reads the clock, makes large allocations and prints stack traces. The order of the calls
// is fixed. The function round calls grow, clock, allocate, interrupt and trace. grow and trace call left, and left and
// right call each other in turn.
package main

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

//go:noinline
func left(n int, f func()) int {
	var a [40]int
	if n == 0 {
		f()
		return 0
	}
	a[n%40] = right(n-1, f)
	return a[n%40] + 1
}

//go:noinline
func right(n int, f func()) int {
	var a [90]int
	if n == 0 {
		f()
		return 0
	}
	a[n%90] = left(n-1, f)
	return a[n%90] + 1
}

var (
	kept [4][]byte
	when time.Time
	line [256]byte
)

//go:noinline
func grow(n int) { left(n, nothing) }

//go:noinline
func nothing() {}

//go:noinline
func clock(n int) {
	for i := 0; i < n; i++ {
		when = time.Now()
	}
}

//go:noinline
func allocate(n int) { kept[n%4] = make([]byte, 64<<10+n) }

//go:noinline
func interrupt(n int) {
	for i := 0; i < n; i++ {
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	}
}

//go:noinline
func trace(n int) { left(n%50, tell) }

//go:noinline
func tell() { runtime.Stack(line[:], false) }

//go:noinline
func round(n int, done chan bool) {
	grow(n % 500)
	if n%16 == 0 {
		clock(100)
		allocate(n)
		interrupt(100)
		trace(n)
	}
	done <- true
}

func main() {
	runtime.GOMAXPROCS(1)
	ch := make(chan os.Signal, 10)
	signal.Notify(ch, syscall.SIGUSR1)
	go func() {
		for range ch {
		}
	}()
	done := make(chan bool)
	for n := 0; ; n++ {
		go round(n, done)
		<-done
	}
}
