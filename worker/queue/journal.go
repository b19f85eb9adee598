package queue

import (
	"sync"
	"time"
)

// Row is what the journal keeps of a waiting call. It holds no stack: the call returned it.
type Row struct {
	Verb       string
	Caller     uint32
	CallerName string
	Backend    int
	PID        int // 0: many
	Requested  time.Time
	Finished   time.Time
	Result     Result
}

// The journal's measures.
const (
	journalRows  = 10_000                 // at most so many rows wait to be written
	journalBatch = 500                    // written at once
	journalPause = 200 * time.Millisecond // and that often
)

// Journal collects rows of waiting calls, by database, until a session writes them. It never holds up a call: when
// there are too many rows the new ones are dropped and counted. Safe for concurrent use; the zero value is ready.
type Journal struct {
	mu       sync.Mutex
	off      bool // nothing can be written (recovery)
	places   map[string]*place
	total    int
	dropped  int
	newcomer func(database string)
}

// place is a database's part of the journal.
type place struct {
	rows  []Row
	owner *session // who writes them; nil: nobody
}

// Add takes a row, without waiting for anything.
func (j *Journal) Add(database string, row Row) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.off:
		return
	case j.total >= journalRows:
		j.dropped++
		return
	}
	p := j.place(database)
	p.rows = append(p.rows, row)
	j.total++
	switch {
	case p.owner == nil:
		if len(p.rows) == 1 && j.newcomer != nil {
			go j.newcomer(database)
		}
	case len(p.rows) == 1:
		time.AfterFunc(journalPause, p.owner.wake)
	case len(p.rows) == journalBatch:
		p.owner.wake()
	}
}

func (j *Journal) place(database string) *place {
	if j.places == nil {
		j.places = make(map[string]*place)
	}
	p := j.places[database]
	if p == nil {
		p = &place{}
		j.places[database] = p
	}
	return p
}

// attach names who writes the rows of a database from now on.
func (j *Journal) attach(s *session) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.place(s.database).owner = s
}

// detach ends that, unless another session has taken over.
func (j *Journal) detach(s *session) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.places[s.database]; p != nil && p.owner == s {
		p.owner = nil
		j.tidy(s.database)
	}
}

// discard forgets the rows of a database that has no session: it has no table for them.
func (j *Journal) discard(database string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.places[database]; p != nil && p.owner == nil {
		j.total -= len(p.rows)
		p.rows = nil
		j.tidy(database)
	}
}

// retain discards what belongs to databases that are none of these.
func (j *Journal) retain(databases map[string]bool) {
	j.mu.Lock()
	var others []string
	for name := range j.places {
		if !databases[name] {
			others = append(others, name)
		}
	}
	j.mu.Unlock()
	for _, name := range others {
		j.discard(name)
	}
}

// tidy removes a place that is of no use.
func (j *Journal) tidy(database string) {
	if p := j.places[database]; p.owner == nil && len(p.rows) == 0 {
		delete(j.places, database)
	}
}

// take returns rows to be written, the oldest first.
func (j *Journal) take(database string) []Row {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.places[database]
	if p == nil || len(p.rows) == 0 {
		return nil
	}
	n := min(len(p.rows), journalBatch)
	rows := p.rows[:n:n]
	if p.rows = p.rows[n:]; len(p.rows) == 0 {
		p.rows = nil
	}
	j.total -= n
	return rows
}

// putBack returns rows that could not be written.
func (j *Journal) putBack(database string, rows []Row) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.off || len(rows) > journalRows-j.total {
		j.dropped += len(rows)
		return
	}
	p := j.place(database)
	p.rows = append(rows, p.rows...)
	j.total += len(rows)
}

// suspend says whether anything can be written at all.
func (j *Journal) suspend(off bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.off = off
	if off {
		for _, p := range j.places {
			p.rows = nil
		}
		j.total = 0
	}
}

// onNewcomer sets who is told of a row of a database without a session.
func (j *Journal) onNewcomer(f func(database string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.newcomer = f
}

// lost returns how many rows were dropped since the last call.
func (j *Journal) lost() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := j.dropped
	j.dropped = 0
	return n
}
