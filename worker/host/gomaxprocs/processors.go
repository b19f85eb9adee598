// Package gomaxprocs keeps a program that mostly waits from using more of the machine than it has work for. The Go
// scheduler looks for work on a second processor whenever something wakes up; while a process stands still and is
// copied, that takes time from the copying (two logical processors often share one core), and makes the pause half as
// long again. So there is one processor as long as there is one piece of work, and all of them for more.
//
// It knows nothing of what the work is. Without a call of Frugal it does nothing.
package gomaxprocs

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// linger is for how long there must have been one piece of work at most until there is one processor again: changing
// their number stops the program for some ten microseconds.
const linger = 20 * time.Millisecond

// use is what there is to do, and what for.
//
//nolint:gochecknoglobals // the number of processors is the program's
var use struct {
	sync.Mutex

	frugal bool
	all    int // how many there are, for a frugal program
	work   int
	wide   bool // all processors are wanted
	since  *time.Timer
}

// Frugal makes the program use one processor while there is one piece of work at most, and look at its clocks less
// often. It respects a GOMAXPROCS of the environment.
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

// All is how many processors there are for much work.
func All() int {
	use.Lock()
	defer use.Unlock()
	if use.frugal {
		return use.all
	}
	return runtime.GOMAXPROCS(0)
}

// Begin says that a piece of work begins, End that it has ended.
func Begin() {
	use.Lock()
	use.work++
	widen := use.frugal && use.work > 1 && !use.wide
	use.wide = use.wide || widen
	use.Unlock()
	if widen {
		go apply()
		runtime.Gosched() // else it would have its turn when one of the two pieces is done, or waits
	}
}

// End ends a piece of work, see Begin.
func End() {
	use.Lock()
	defer use.Unlock()
	use.work--
	if use.wide && use.work == 1 { // the last time that there were two
		use.since.Reset(linger)
	}
}

// narrow goes back to one processor, if there was not more to do meanwhile.
func narrow() {
	use.Lock()
	if use.work <= 1 {
		use.wide = false
	}
	use.Unlock()
	apply()
}

// change orders the changes.
//
//nolint:gochecknoglobals // as above
var change struct {
	sync.Mutex

	narrow bool // one processor, as it is
}

// apply does what is wanted now. It may take as long as a garbage collection, for which nobody must wait.
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
