// Command goroutines has goroutines that wait for everything that they can wait for, or run, and then reads its
// standard input.
package main

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

//go:noinline
func deep(n int, f func()) int {
	var room [100]int
	if n == 0 {
		f()
		return 0
	}
	room[n%100] = deep(n-1, f)
	return room[n%100] + 1
}

type waiter struct{ cond *sync.Cond }

func (w *waiter) wait() { w.cond.L.Lock(); w.cond.Wait() }

func receive[T any](c chan T) T { return <-c }

func inlined(c chan int) { c <- 1 }

//go:noinline
func spin(stop *bool) {
	for !*stop {
		deep(20, func() {})
	}
}

//go:noinline
func read() {
	var b [1]byte
	_, _ = syscall.Read(0, b[:])
}

func main() {
	var mutex sync.Mutex
	mutex.Lock()
	var rw sync.RWMutex
	rw.Lock()
	var group sync.WaitGroup
	group.Add(1)
	var stop bool
	silent := make(chan int)
	w := &waiter{cond: sync.NewCond(new(sync.Mutex))}
	for i := 0; i < 3; i++ { // Go 1.18 builds it too
		go func() { receive(silent) }()
	}
	go inlined(silent2)
	go func() {
		select {
		case <-silent:
		case <-make(chan string):
		}
	}()
	go func() { select {} }()
	go mutex.Lock()
	go rw.RLock()
	go group.Wait()
	go w.wait()
	go time.Sleep(time.Hour)
	go func() { runtime.LockOSThread(); receive(make(chan struct{})) }()
	go deep(1000, func() { receive(silent) })
	go func() {
		defer func() { _ = recover(); receive(silent) }()
		var p *int
		*p = 1
	}()
	if len(os.Args) > 1 {
		go spin(&stop)
	}
	time.Sleep(100 * time.Millisecond)
	read()
}

var silent2 = make(chan int)
