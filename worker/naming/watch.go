package naming

import (
	"sync"
	"time"

	"pg_stat_backtrace/worker/host"
)

// watchFor is how long a process is watched after a stack needed its generated code.
const watchFor = 2 * time.Second

// watcher reads the generated code of processes at short intervals. A stack waits for some time until it is unwound,
// and the process may free the code of a short query before that.
type watcher struct {
	mu      sync.Mutex
	callers int
	kick    chan struct{} // receives a value when a process is added to wanted; nil while no caller needs the watcher
	wanted  map[*Later]time.Time
}

// Watch makes the store read the generated code of each process for watchFor after a stack needed it. The caller must
// call end. The reads stop after the last end.
func (s *LaterStore) Watch() (end func()) {
	w := &s.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.callers++; w.callers == 1 {
		w.kick, w.wanted = make(chan struct{}, 1), make(map[*Later]time.Time)
		go w.run(w.kick)
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.callers--; w.callers == 0 {
			close(w.kick)
			w.kick, w.wanted = nil, nil
		}
	})
}

// want makes the watcher read a process for watchFor.
func (w *watcher) want(l *Later, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kick == nil {
		return
	}
	w.wanted[l] = now.Add(watchFor)
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run waits for wanted processes, and reads each of them every laterInterval.
func (w *watcher) run(kick chan struct{}) {
	for range kick {
		for {
			list := w.take(kick)
			if len(list) == 0 {
				break
			}
			for _, l := range list {
				_ = host.Catch("a search for generated code", func() error { // of what a process has in its memory
					l.refresh()
					return nil
				})
			}
			time.Sleep(laterInterval)
		}
	}
}

// take returns the processes to read now; none if the watcher has ended.
func (w *watcher) take(kick chan struct{}) (list []*Later) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kick != kick {
		return nil
	}
	now := time.Now()
	for l, until := range w.wanted {
		if now.After(until) {
			delete(w.wanted, l)
			continue
		}
		list = append(list, l)
	}
	return list
}

// refresh searches for generated code if the process no longer has the most recent image.
func (l *Later) refresh() {
	if p := l.images.Load(); p == nil || len(*p) == 0 || !l.current((*p)[0]) {
		l.search(time.Now())
	}
}
