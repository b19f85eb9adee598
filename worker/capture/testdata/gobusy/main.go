// Command gobusy keeps two processors busy with all that Go's run time does: garbage collection, signals, growing
// stacks, faults, the time, locks, and goroutines that come and go.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

type node struct{ l, r *node }

func tree(n int) *node {
	if n == 0 {
		return &node{}
	}
	return &node{tree(n - 1), tree(n - 1)}
}

//go:noinline
func deep(n int, f func()) int {
	var a [64]int
	if n == 0 {
		f()
		return 0
	}
	a[n%64] = deep(n-1, f)
	return a[n%64] + 1
}

func fault() { defer func() { _ = recover() }(); var p *node; _ = p.l.r }

func main() {
	runtime.GOMAXPROCS(2)
	ch := make(chan os.Signal, 10)
	signal.Notify(ch, syscall.SIGUSR1)
	go func() {
		for range ch {
		}
	}()
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		for {
			tree(12)
		}
	}()
	go func() {
		for {
			done := make(chan int)
			go func() { deep(100, func() { time.Now() }); close(done) }()
			<-done
		}
	}()
	go func() {
		for {
			_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
			for i := 0; i < 100; i++ {
				fault()
			}
		}
	}()
	go func() {
		for {
			_ = fmt.Sprint(time.Now(), time.Since(time.Time{}))
			runtime.Gosched()
		}
	}()
	go func() {
		var m sync.Mutex
		for {
			m.Lock()
			go m.Unlock()
			m.Lock()
			m.Unlock()
			var ms runtime.MemStats
			runtime.ReadMemStats(&ms)
			runtime.Stack(make([]byte, 1000), true)
		}
	}()
	wg.Wait()
}
