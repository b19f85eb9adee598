// Package gomaxprocs limits a program that mostly waits to one processor while it has only one task. Otherwise the Go
// scheduler searches for work on a second processor at every wake-up. While a process is stopped and copied, that
// slows the copy, because two logical processors often share one core. The pause is then half as long again. With two
// or more tasks the program uses all processors.
//
// The package does not know the tasks. Without a call of Frugal it does nothing.
package gomaxprocs

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// linger is how long there must have been at most one task before the program returns to one processor. Each change
// stops the program for some ten microseconds.
const linger = 20 * time.Millisecond

// use counts the active tasks, and has the mode of GOMAXPROCS.
//
//nolint:gochecknoglobals // the number of processors is the program's
var use struct {
	sync.Mutex

	frugal bool
	all    int // number of processors, for a frugal program
	work   int
	wide   bool // all processors should be used
	since  *time.Timer
}

// Frugal makes the program use one processor while it has at most one task, and check its timers less often. It does
// nothing about processors if GOMAXPROCS is set in the environment.
func Frugal() {
	loosen()
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	use.Lock()
	defer use.Unlock()
	use.frugal, use.wide, use.all = true, true, runtime.GOMAXPROCS(0)
	use.since = time.AfterFunc(0, narrow)
}

// All returns how many processors the program uses for several tasks.
func All() int {
	use.Lock()
	defer use.Unlock()
	if use.frugal {
		return use.all
	}
	return runtime.GOMAXPROCS(0)
}

// Begin records that a task begins. The caller must call End when it ends.
func Begin() {
	use.Lock()
	use.work++
	widen := use.frugal && use.work > 1 && !use.wide
	use.wide = use.wide || widen
	use.Unlock()
	if widen {
		go apply()
		runtime.Gosched() // otherwise apply would run only when a task ends or waits
	}
}

// End records that a task has ended, see Begin.
func End() {
	use.Lock()
	defer use.Unlock()
	use.work--
	if use.wide && use.work == 1 { // the number of tasks fell below two
		use.since.Reset(linger)
	}
}

// narrow returns to one processor, unless there are several tasks again.
func narrow() {
	use.Lock()
	if use.work <= 1 {
		use.wide = false
	}
	use.Unlock()
	apply()
}

// change serializes the changes.
//
//nolint:gochecknoglobals // as above
var change struct {
	sync.Mutex

	narrow bool // whether the program uses one processor now
}

// apply sets the wanted number of processors. It may take as long as a garbage collection, so it runs in its own
// goroutine.
func apply() {
	change.Lock()
	defer change.Unlock()
	use.Lock()
	narrow := use.frugal && !use.wide
	use.Unlock()
	switch {
	case narrow == change.narrow:
	case narrow:
		runtime.GOMAXPROCS(1)
	default:
		runtime.SetDefaultGOMAXPROCS()
	}
	change.narrow = narrow
}
