package symbolize

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"pg_stat_backtrace/unwind/debugfile"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host/gomaxprocs"
)

// maxAnswers bounds the addresses of one module whose lines are remembered. A
// server's stacks have some thousands of different ones.
const maxAnswers = 2048

// DefaultLinesWait bounds how long an answer waits for source lines, all its
// frames together. What takes longer is looked up all the same, for the next
// answer.
const DefaultLinesWait = 200 * time.Millisecond

// lines are the functions, inlined calls and source lines of a module. One
// goroutine looks them up, as long as there is something to look up: an answer
// waits for it only so long.
type lines struct {
	make func() *dwarf.Data // nil: the module has none
	tell func(...error)

	mu      sync.Mutex
	wished  []uint64 // asked for before it is known whether there is anything
	answers map[uint64]*answer
	pending []uint64
	busy    bool
	made    bool        // make was called; of that goroutine
	data    *dwarf.Data // of that goroutine
}

// answer is what is known of an address, as soon as done is closed.
type answer struct {
	done   chan struct{}
	frames []dwarf.Frame
	left   bool // nobody has looked
}

// QueueLookup has an address looked up as soon as it is known where to look.
func (l *lines) QueueLookup(addr uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wished) < maxAnswers {
		l.wished = append(l.wished, addr)
	}
}

// LinesAsked reports whether the lines at an image address have been looked up, or will be when it is known where to
// look.
func (m *Module) LinesAsked(addr uint64) bool {
	m.Lines.mu.Lock()
	defer m.Lines.mu.Unlock()
	return m.Lines.answers[addr] != nil || slices.Contains(m.Lines.wished, addr)
}

// StartLookups looks up what was wished for; nothing if there is nowhere to look.
func (l *lines) StartLookups() {
	l.mu.Lock()
	wished := l.wished
	l.wished = nil
	l.mu.Unlock()
	if l.make == nil || len(wished) == 0 {
		return
	}
	for _, addr := range wished {
		l.ask(addr)
	}
	runtime.Gosched() // let it begin: what the caller goes on with may take long, and there may be one processor
}

// open says where the debugging information is: in an image, which must stay
// open. Nothing is read yet but what was wished for.
func (l *lines) open(m *Module, from *elfimage.Image, path string, options debugfile.Options) {
	l.answers, l.tell = make(map[uint64]*answer), m.Tell
	defer l.StartLookups()
	l.make = func() *dwarf.Data {
		o := dwarf.Options{
			Cache: m.Sources.Cache, Spill: func() (dwarf.SpillFile, error) { return spill() },
			Report: func(err error) { m.Tell(err) },
		}
		if _, linked := debugfile.SupplementLink(from); linked {
			sup, err := m.supplement(from, path, options)
			if err == nil {
				o.Supplement, err = dwarf.New(sup.Image, o)
			}
			if err != nil {
				m.Tell(err)
			}
		}
		o.Split = func(f dwarf.SplitFile) (*elfimage.Image, error) {
			r, err := debugfile.FindSplit(from, path, f.Dir, f.Name, options)
			return r.Image, err
		}
		o.Package = func() (*elfimage.Image, error) {
			r, err := debugfile.FindPackage(from, []string{m.Path, path}, options)
			return r.Image, err
		}
		data, err := dwarf.New(from, o)
		if err != nil {
			m.Tell(err)
			return nil
		}
		return data
	}
}

// at returns the calls at an image address, innermost first; none if nothing
// is known. It is not final if it was not known before the deadline.
func (l *lines) at(addr uint64, late *Deadline) (calls []dwarf.Frame, final bool) {
	if l.make == nil {
		return nil, true
	}
	a := l.ask(addr)
	select {
	case <-a.done:
		return a.frames, !a.left
	default:
	}
	select {
	case <-a.done:
		return a.frames, !a.left
	case <-late.passed():
		return nil, false
	}
}

// ask returns the answer for an address, which may not be there yet.
func (l *lines) ask(addr uint64) *answer {
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
		a.left = true
		close(a.done) // too many at once: this one goes without
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

// work looks up what is pending.
func (l *lines) work() {
	if !l.made {
		l.made = true // once: what has failed would fail for each address
		// To expand a debug file is work beside the capture that asks for it.
		gomaxprocs.Begin()
		defer gomaxprocs.End()
		l.data = l.make()
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
		a.frames = l.frames(addr)
		close(a.done)
	}
}

// frames looks up an address. After a panic there are no more answers.
func (l *lines) frames(addr uint64) []dwarf.Frame {
	data := l.data
	if data == nil {
		return nil
	}
	l.data = nil
	defer Survive(l.tell)
	frames, _ := data.Frames(addr) // what is missing is not known
	l.data = data
	return frames
}
