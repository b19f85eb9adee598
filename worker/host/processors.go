package host

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// linger is how long the program must have had at most one task before it returns to one processor. Each change of the
// number of processors stops the program for some ten microseconds.
const linger = 20 * time.Millisecond

// processorUse has the number of active tasks (work), and the wanted mode of GOMAXPROCS.
//
//nolint:gochecknoglobals // the number of processors is the program's
var processorUse struct {
	sync.Mutex

	frugal bool
	all    int // number of processors before Frugal
	work   int
	wide   bool // all processors should be used
	since  *time.Timer
}

// Frugal makes the program use one processor while it has at most one task, and check its timers less often. If
// GOMAXPROCS is set in the environment, the number of processors stays.
func Frugal() {
	loosen()
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	processorUse.Lock()
	defer processorUse.Unlock()
	processorUse.frugal, processorUse.wide, processorUse.all = true, true, runtime.GOMAXPROCS(0)
	processorUse.since = time.AfterFunc(0, narrowProcessors)
}

// AllProcessors returns how many processors the program uses for several tasks.
func AllProcessors() int {
	processorUse.Lock()
	defer processorUse.Unlock()
	if processorUse.frugal {
		return processorUse.all
	}
	return runtime.GOMAXPROCS(0)
}

// BeginWork records that a task begins. The caller must call EndWork when it ends.
func BeginWork() {
	processorUse.Lock()
	processorUse.work++
	widen := processorUse.frugal && processorUse.work > 1 && !processorUse.wide
	processorUse.wide = processorUse.wide || widen
	processorUse.Unlock()
	if widen {
		go applyProcessors()
		runtime.Gosched() // otherwise applyProcessors would run only when a task ends or waits
	}
}

// EndWork records that a task has ended, see BeginWork.
func EndWork() {
	processorUse.Lock()
	defer processorUse.Unlock()
	processorUse.work--
	if processorUse.wide && processorUse.work == 1 { // the number of tasks fell below two
		processorUse.since.Reset(linger)
	}
}

// narrowProcessors makes the program use one processor, unless there are several tasks again.
func narrowProcessors() {
	processorUse.Lock()
	if processorUse.work <= 1 {
		processorUse.wide = false
	}
	processorUse.Unlock()
	applyProcessors()
}

// processorChange serializes the changes of GOMAXPROCS.
//
//nolint:gochecknoglobals // as above
var processorChange struct {
	sync.Mutex

	narrow bool // whether the program uses one processor now
}

// applyProcessors sets the wanted number of processors. It may take as long as a garbage collection, so it runs in its own
// goroutine.
func applyProcessors() {
	processorChange.Lock()
	defer processorChange.Unlock()
	processorUse.Lock()
	narrow := processorUse.frugal && !processorUse.wide
	processorUse.Unlock()
	switch {
	case narrow == processorChange.narrow:
	case narrow:
		runtime.GOMAXPROCS(1)
	default:
		runtime.SetDefaultGOMAXPROCS()
	}
	processorChange.narrow = narrow
}
