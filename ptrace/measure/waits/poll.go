package waits

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// pollInterval is the time between two reads of all processes' wait events.
const pollInterval = 10 * time.Millisecond

// poller is a Provider that estimates figures: it reads all wait events again and again.
type poller struct {
	procs *procs
	info  Info
	stop  chan struct{}
	done  chan struct{}

	mu    sync.Mutex
	since time.Time
	slots map[int]*polled
	ended table // sums of ended processes that are not in keep
	keep  keeper
	err   error // why the reading ended, if not by Close
}

// polled has the figures of the process that uses a slot at present.
type polled struct {
	pid    int        // process id as the server sees it
	id     process.ID // as this process sees it
	resets uint64     // number of resets
	events table
}

// openPoller starts to read the wait events.
func openPoller(p *procs, info Info, o Options) (*poller, error) {
	w := &poller{
		procs: p, info: info, stop: make(chan struct{}), done: make(chan struct{}), since: time.Now(),
		slots: make(map[int]*polled), ended: make(table), keep: keeper{pids: o.Keep, most: o.KeepEnded},
	}
	first := make([]uint32, 2*p.count)
	if err := p.readAll(first); err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("%w: %w", fs.ErrPermission, err)
		}
		return nil, err
	}
	go w.run(first)
	return w, nil
}

// run reads all wait events until Close or the end of the server. For each process that waits, it adds the time since the
// previous read to the event's total.
func (w *poller) run(buffer []uint32) {
	defer close(w.done)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-w.stop:
			return
		case <-ticker.C:
		}
		err := w.procs.readAll(buffer)
		now := time.Now()
		if errors.Is(err, process.ErrUnreachable) || process.LacksResources(err) {
			last = now // it is not known what the processes did since the last read
			continue
		}
		w.mu.Lock()
		if err != nil {
			w.err = fmt.Errorf("%w: %w", ErrServerGone, err)
			w.mu.Unlock()
			return
		}
		w.take(buffer, now.Sub(last))
		w.mu.Unlock()
		last = now
	}
}

// take adds the events of one read to the figures of the processes. passed is the time since the previous read.
func (w *poller) take(buffer []uint32, passed time.Duration) {
	for i := range w.procs.count {
		event, pid := buffer[2*i], int(buffer[2*i+1])
		s := w.slots[i]
		if s != nil && s.pid != pid {
			w.end(i, s)
			s = nil
		}
		if event == 0 || pid == 0 {
			continue
		}
		if s == nil {
			id, err := process.IDOf(w.procs.local(pid))
			if err != nil {
				continue // the process has ended, or it is not known which process this is
			}
			s = &polled{pid: pid, id: id, events: make(table)}
			w.slots[i] = s
		}
		s.events.at(event).Total += passed
	}
}

// end moves the figures of the process that used a slot to those of ended processes.
func (w *poller) end(slot int, s *polled) {
	p := w.process(slot, s)
	p.Ended = true
	if !w.keep.add(p) {
		w.ended.addAll(p.Events)
	}
	delete(w.slots, slot)
}

// endGone ends the slots whose processes have ended. Until PostgreSQL 16, the PGPROC of an ended process keeps its process id until
// another process uses it.
func (w *poller) endGone() {
	for i, s := range w.slots {
		if s.id.Ended() {
			w.end(i, s)
		}
	}
}

func (w *poller) Info() Info { return w.info }

func (w *poller) Snapshot() (*Snapshot, error) {
	if err := w.procs.alive(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	return w.snapshot(), nil
}

func (w *poller) snapshot() *Snapshot {
	w.endGone()
	s := &Snapshot{At: time.Now(), Since: w.since, Ended: w.ended.list()}
	for i, slot := range w.slots {
		s.Processes = append(s.Processes, w.process(i, slot))
	}
	s.Processes = w.keep.addTo(s.Processes)
	return s
}

func (w *poller) process(slot int, s *polled) Process {
	return Process{PID: s.id.PID, Slot: slot, Events: s.events.list(), Resets: s.resets}
}

func (w *poller) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	return w.procs.alive()
}

func (w *poller) Queries() ([]QueryFigures, error) { return nil, nil }

func (w *poller) Reset(pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endGone()
	known := false
	for _, slot := range w.slots {
		if slot.id.PID == pid {
			slot.events = make(table)
			slot.resets++
			known = true
		}
	}
	return known
}

func (w *poller) ResetAll() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, slot := range w.slots {
		slot.events = make(table)
		slot.resets++
	}
	w.keep.ended = nil
	w.ended = make(table)
	w.since = time.Now()
	return nil
}

func (w *poller) Cost() (Cost, error) { return Cost{}, nil }

func (w *poller) Close() {
	close(w.stop)
	<-w.done
}

// bytesOf returns the memory of the slice numbers as a slice of bytes, without copying it.
func bytesOf(numbers []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(numbers))), 4*len(numbers))
}
