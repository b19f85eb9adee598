package symbolize

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host"
)

// maxAnswers bounds the addresses of one module whose lines are cached. A server's stacks have some thousands of
// different addresses.
const maxAnswers = 2048

// DefaultLinesWait bounds how long a capture waits for the source lines of all its frames. Lookups that take longer
// continue in the background, for the next capture.
const DefaultLinesWait = 200 * time.Millisecond

// lines looks up the functions, inlined calls and source lines of a module. One goroutine (work) does the lookups, as
// long as any are pending. A caller waits only until its deadline.
type lines struct {
	make func() *dwarf.Data // nil if the module has no debugging information
	warn func(...error)

	mu      sync.Mutex
	queued  []uint64 // addresses queued before the debugging information has been found
	answers map[uint64]*answer
	pending []uint64
	busy    bool
	made    bool        // make was called; used only by work
	data    *dwarf.Data // used only by work
	// mixed means that results depend on more files than the debug file (split DWARF); guarded by mu.
	mixed bool
}

// answer is the result of one lookup. It is valid once done is closed.
type answer struct {
	done    chan struct{}
	frames  []dwarf.Frame
	skipped bool // the address was not looked up
	certain bool // the lookup had no error
}

// QueueLookup queues an address. StartLookups looks it up once the debugging information has been found.
func (l *lines) QueueLookup(addr uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queued) < maxAnswers {
		l.queued = append(l.queued, addr)
	}
}

// LinesRequested reports whether an image address is queued or has been looked up.
func (m *Module) LinesRequested(addr uint64) bool {
	m.Lines.mu.Lock()
	defer m.Lines.mu.Unlock()
	return m.Lines.answers[addr] != nil || slices.Contains(m.Lines.queued, addr)
}

// StartLookups looks up the queued addresses. It does nothing if the module has no debugging information.
func (l *lines) StartLookups() {
	l.mu.Lock()
	queued := l.queued
	l.queued = nil
	l.mu.Unlock()
	if l.make == nil || len(queued) == 0 {
		return
	}
	for _, addr := range queued {
		l.request(addr)
	}
	runtime.Gosched() // let work begin: the caller's next step may take long, and there may be only one processor
}

// open sets the image that has the debugging information. The image must stay open. open starts the lookups of the
// queued addresses.
func (l *lines) open(m *Module, from *elfimage.Image, path string, options elfimage.SearchOptions) {
	l.answers, l.warn = make(map[uint64]*answer), m.Warn
	defer l.StartLookups()
	l.make = func() *dwarf.Data {
		o := dwarf.Options{
			Cache: m.Sources.Cache, Spill: func() (dwarf.SpillFile, error) { return spill() },
			Report: func(err error) { m.Warn(err) },
		}
		if _, linked := elfimage.SupplementLink(from); linked {
			sup, err := m.supplement(from, path, options)
			if err == nil {
				o.Supplement, err = dwarf.New(sup.Image, o)
			}
			if err != nil {
				m.Warn(err)
			}
		}
		o.Split = func(f dwarf.SplitFile) (*elfimage.Image, error) {
			l.mix()
			r, err := elfimage.FindSplit(from, path, f.Dir, f.Name, options)
			return r.Image, err
		}
		o.Package = func() (*elfimage.Image, error) {
			l.mix()
			r, err := elfimage.FindPackage(from, []string{m.Path, path}, options)
			return r.Image, err
		}
		data, err := dwarf.New(from, o)
		if err != nil {
			m.Warn(err)
			return nil
		}
		return data
	}
}

// at returns the functions at an image address, innermost first: the inlined functions, and then the function that
// contains them. It returns none if nothing is known. final is false if the deadline passed before the lookup was done,
// or if too many lookups were pending.
func (l *lines) at(addr uint64, late *Deadline) (calls []dwarf.Frame, final bool) {
	if l.make == nil {
		return nil, true
	}
	a := l.request(addr)
	select {
	case <-a.done:
		return a.frames, !a.skipped
	default:
	}
	select {
	case <-a.done:
		return a.frames, !a.skipped
	case <-late.passed():
		return nil, false
	}
}

// request returns the answer for an address. Its lookup may still be pending.
func (l *lines) request(addr uint64) *answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.answers[addr]; a != nil {
		return a
	}
	if len(l.answers) >= maxAnswers && len(l.pending) == 0 {
		clear(l.answers)
	}
	a := &answer{done: make(chan struct{})}
	if len(l.answers) >= maxAnswers {
		a.skipped = true
		close(a.done) // too many at a time: this address is not looked up
		return a
	}
	l.answers[addr] = a
	l.pending = append(l.pending, addr)
	if !l.busy {
		l.busy = true
		go l.work()
	}
	return a
}

// work runs the pending lookups.
func (l *lines) work() {
	if !l.made {
		l.made = true // before the call: after an error, make is not called again
		// Expanding a debug file takes processor time beside the capture that needs it.
		host.BeginWork()
		defer host.EndWork()
		if err := host.Catch("a debug file", func() error {
			l.data = l.make()
			return nil
		}); err != nil {
			l.warn(fmt.Errorf("debugging information is ignored: %w", err))
		}
	}
	for {
		l.mu.Lock()
		if len(l.pending) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		addr := l.pending[0]
		l.pending = l.pending[1:]
		a := l.answers[addr]
		l.mu.Unlock()
		a.frames, a.certain = l.frames(addr)
		close(a.done)
	}
}

// mix records that results depend on more files than the debug file.
func (l *lines) mix() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mixed = true
}

// certain reports whether the lookup of an address has ended without an error, and the result depends on the debug file
// only. Without debugging information it returns true.
func (l *lines) certain(addr uint64) bool {
	if l.make == nil {
		return true
	}
	l.mu.Lock()
	a, mixed := l.answers[addr], l.mixed
	l.mu.Unlock()
	if a == nil || mixed {
		return false
	}
	select {
	case <-a.done:
		return a.certain
	default:
		return false
	}
}

// frames looks up an address, and returns its functions as the method at does. After an error, certain is false, and
// functions may be missing. After a panic in a lookup, this and all later lookups return none.
func (l *lines) frames(addr uint64) (frames []dwarf.Frame, certain bool) {
	data := l.data
	if data == nil {
		return nil, false
	}
	l.data = nil
	defer Survive(l.warn)
	frames, err := data.Frames(addr)
	l.data = data
	return frames, err == nil
}
