package queue

import (
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Row is the journal's row about a waiting call: a call that waited for its answer. It has no stack, because the call returned
// the stack.
type Row struct {
	Verb       string
	Caller     uint32
	CallerName string
	Backend    int
	PID        int // 0: the call was about many processes
	Requested  time.Time
	Finished   time.Time
	Result     Result
}

// The limits of the journal.
const (
	journalBytes = 4 << 20                // bytes of memory for the unwritten rows of one database
	journalTotal = 32 << 20               // bytes of memory for the unwritten rows of all databases
	journalText  = 1 << 10                // length to which a text is cut, in bytes
	journalBatch = 500                    // rows written at once
	journalPause = 200 * time.Millisecond // interval of the writes
)

// Journal collects the rows of waiting calls, by database, until a session writes them. It never delays a call. If the
// rows of a database take too much memory, its newest rows are dropped and counted. Rows of other databases stay, so a
// database that cannot be reached does not affect them. A Journal is safe for concurrent use. Its zero value is ready.
type Journal struct {
	mu       sync.Mutex
	off      bool // rows cannot be written, because the server is in recovery
	places   map[string]*place
	bytes    int                   // of all rows
	dropped  map[string]int        // number of rows dropped since the last call of lost, by database
	newcomer func(database string) // see onNewcomer; nil: none
}

// place is the part of the journal for one database.
type place struct {
	rows  []Row
	bytes int
	owner *session // the session that writes these rows; nil: no session
}

// size returns the approximate memory of a row, in bytes.
func (r *Row) size() int {
	const fixed = 256
	return fixed + len(r.Verb) + len(r.CallerName) + len(r.Result.Engine) + len(r.Result.Message) + len(r.Result.Detail) +
		len(r.Result.Hint)
}

// shorten cuts long texts of a row to journalText bytes, without cutting a character.
func (r *Row) shorten() {
	for _, s := range []*string{&r.CallerName, &r.Result.Message, &r.Result.Detail, &r.Result.Hint} {
		if len(*s) > journalText {
			end := journalText
			for end > journalText-utf8.UTFMax && !utf8.RuneStart((*s)[end]) {
				end--
			}
			*s = strings.Clone((*s)[:end]) + "..."
		}
	}
}

// Add adds a row. It does not block.
func (j *Journal) Add(database string, row Row) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.off {
		return
	}
	row.shorten()
	p := j.place(database)
	if p.bytes+row.size() > journalBytes || !j.makeRoom(p, row.size()) {
		j.drop(database, 1)
		j.removeUnused(database)
		return
	}
	p.rows = append(p.rows, row)
	p.bytes += row.size()
	j.bytes += row.size()
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

// makeRoom makes room for size more bytes of p within journalTotal. To do so, it drops the newest rows of the database with
// the most bytes. If p is that database, makeRoom returns false.
func (j *Journal) makeRoom(p *place, size int) bool {
	for j.bytes+size > journalTotal {
		name, largest := "", p
		for other, q := range j.places {
			if q.bytes > largest.bytes {
				name, largest = other, q
			}
		}
		if largest == p {
			return false
		}
		last := len(largest.rows) - 1
		n := largest.rows[last].size()
		largest.rows[last] = Row{}
		largest.rows, largest.bytes = largest.rows[:last], largest.bytes-n
		j.bytes -= n
		j.drop(name, 1)
	}
	return true
}

func (j *Journal) drop(database string, rows int) {
	if j.dropped == nil {
		j.dropped = make(map[string]int)
	}
	j.dropped[database] += rows
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

// attach makes s the session that writes its database's rows.
func (j *Journal) attach(s *session) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.place(s.database).owner = s
}

// detach notes that no session writes the rows of the database of s. It does nothing if another session has replaced s as the
// writer.
func (j *Journal) detach(s *session) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.places[s.database]; p != nil && p.owner == s {
		p.owner = nil
		j.removeUnused(s.database)
	}
}

// discard drops the rows of a database that has no table for them, unless a session writes them.
func (j *Journal) discard(database string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.places[database]; p != nil && p.owner == nil {
		j.bytes -= p.bytes
		p.rows, p.bytes = nil, 0
		j.removeUnused(database)
	}
}

// waits reports whether a database has unwritten rows.
func (j *Journal) waits(database string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.places[database]
	return p != nil && len(p.rows) > 0
}

// renaming is a database that was renamed.
type renaming struct {
	former, name string
	rows         []Row // see rename
}

// rename moves the rows of databases that were renamed. Databases may have exchanged their names.
func (j *Journal) rename(list []renaming) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range list {
		if p := j.places[list[i].former]; p != nil {
			list[i].rows = p.rows
			j.bytes -= p.bytes
			p.rows, p.bytes = nil, 0
			j.removeUnused(list[i].former)
		}
	}
	for _, r := range list {
		if len(r.rows) > 0 {
			j.restore(r.name, r.rows)
			j.removeUnused(r.name)
		}
	}
}

// retain drops the rows of all databases except the given ones.
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

// removeUnused removes the place of a database if it has no rows and no session.
func (j *Journal) removeUnused(database string) {
	if p := j.places[database]; p.owner == nil && len(p.rows) == 0 {
		delete(j.places, database)
	}
}

// take removes and returns the rows to write next, journalBatch at most, the oldest first.
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
	for i := range rows {
		p.bytes -= rows[i].size()
		j.bytes -= rows[i].size()
	}
	return rows
}

// putBack returns rows to the journal that take has removed but that could not be written. It drops the rows that have no room
// any more.
func (j *Journal) putBack(database string, rows []Row) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.restore(database, rows)
}

// restore is putBack. The caller must have locked j.mu.
func (j *Journal) restore(database string, rows []Row) {
	if j.off {
		return
	}
	p := j.place(database)
	size := 0
	for i := range rows {
		size += rows[i].size()
	}
	if p.bytes+size > journalBytes || j.bytes+size > journalTotal {
		j.drop(database, len(rows))
		return
	}
	p.rows = append(rows, p.rows...)
	p.bytes += size
	j.bytes += size
}

// suspend switches the journal off (off is true) or on. It is off during recovery, when rows cannot be written.
// Switching it off drops all rows.
func (j *Journal) suspend(off bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.off = off
	if off {
		for _, p := range j.places {
			p.rows, p.bytes = nil, 0
		}
		j.bytes = 0
	}
}

// onNewcomer sets a function that is called for the first row of a database without a session.
func (j *Journal) onNewcomer(f func(database string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.newcomer = f
}

// lost returns the number of rows that were dropped since the last call of lost, by database.
func (j *Journal) lost() map[string]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := j.dropped
	j.dropped = nil
	return n
}
