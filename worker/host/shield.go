package host

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// Panic is the error of work that panicked.
type Panic struct {
	// Place names the work, as given to Catch.
	Place string
	// Value is the argument of panic, and Stack the stack of the goroutine.
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic in %s: %v\n%s", p.Place, p.Value, p.Stack) }

// Catch calls f and returns its error. If f panics, the error is a *Panic. A runtime.Goexit is not an error.
func Catch(place string, f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{Place: place, Value: value, Stack: debug.Stack()}
		}
	}()
	if inject := injected.Load(); inject != nil {
		(*inject)(place)
	}
	return f()
}

// injected is the function of InjectPanic.
var injected atomic.Pointer[func(place string)] //nolint:gochecknoglobals // set by tests only

// InjectPanic makes Catch call f, which can panic, before the work. It is for tests. The caller must call restore.
func InjectPanic(f func(place string)) (restore func()) {
	old := injected.Swap(&f)
	return func() { injected.Store(old) }
}
