package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Depths has the lengths of the queues of all databases, and for each queue whether it has lost its session. The zero
// value is ready. A nil Depths stores nothing.
type Depths struct {
	mu        sync.Mutex
	databases map[string]*depth
}

// depth is the length of one queue.
type depth struct {
	measured time.Time // time of the last measurement, or of the last attempt
	next     time.Time // when the next measurement is due; zero: now
	queued   int       // number of rows, including the claimed ones
	oldest   time.Time // time of the oldest request; zero: there are no requests
	claimed  int       // number of rows that this worker runs now
	unknown  bool      // the length was not measured yet, or cannot be measured
	lost     time.Time // when the queue lost its session; zero: the queue has a session, or waits for its turn
}

const (
	// measureEvery is the time between two measurements of a queue's length.
	measureEvery = 10 * time.Second
	// A length is valid for validFor, plus validForDatabase for each database, because databases may take turns.
	validFor         = 30 * time.Second
	validForDatabase = time.Second
)

// Sum adds up all queues. It returns the number of waiting requests, the number of running ones, and the age of the
// oldest request. ok is false if no database has a queue, or if the length of a queue is not known: its session is
// gone, or the worker's role may not see the requests of other roles.
func (d *Depths) Sum() (waiting, claimed int, oldest time.Duration, ok bool) {
	if d == nil {
		return 0, 0, 0, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, of := range d.databases {
		if of.unknown || d.stale(of, now) {
			return 0, 0, 0, false
		}
		waiting += max(0, of.queued-of.claimed)
		claimed += of.claimed
		if !of.oldest.IsZero() {
			oldest = max(oldest, now.Sub(of.oldest))
		}
	}
	return waiting, claimed, oldest, len(d.databases) > 0
}

// Lost returns the longest time for which a queue has had no session; 0: each queue has a session or waits for its turn.
func (d *Depths) Lost() (longest time.Duration) {
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, of := range d.databases {
		switch {
		case !of.lost.IsZero():
			longest = max(longest, now.Sub(of.lost))
		case d.stale(of, now):
			longest = max(longest, now.Sub(of.measured))
		}
	}
	return longest
}

// stale reports whether a queue's last measurement is so old that the queue should have had a session since then.
func (d *Depths) stale(of *depth, now time.Time) bool {
	return now.Sub(of.measured) > validFor+validForDatabase*time.Duration(len(d.databases))
}

// set stores the length of a queue that its session has measured.
func (d *Depths) set(database string, of depth) {
	of.measured = time.Now()
	of.next = of.measured.Add(measureEvery)
	d.edit(func() { d.databases[database] = &of })
}

// edit calls f, which may change the databases, unless d is nil.
func (d *Depths) edit(f func()) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.databases == nil {
		d.databases = make(map[string]*depth)
	}
	f()
}

// skip notes that the length of a queue could not be measured, although the queue has a session.
func (d *Depths) skip(database string) { d.set(database, depth{unknown: true}) }

// expect notes that a database may have a queue. It does nothing if the database is known already.
func (d *Depths) expect(database string) {
	d.edit(func() {
		if d.databases[database] == nil {
			d.databases[database] = &depth{measured: time.Now(), unknown: true}
		}
	})
}

// open notes that a queue has got a session. If the queue is new or had lost its session before, its length is not
// known until it is measured.
func (d *Depths) open(database string) {
	d.edit(func() {
		of := d.databases[database]
		if of == nil || !of.lost.IsZero() {
			d.databases[database] = &depth{measured: time.Now(), unknown: true}
		}
	})
}

// lose notes that a queue has lost its session, or that no session could be opened. It does nothing for a database
// without a queue.
func (d *Depths) lose(database string) {
	d.edit(func() {
		if of := d.databases[database]; of != nil {
			of.lose()
		}
	})
}

func (of *depth) lose() {
	of.unknown = true
	if of.lost.IsZero() {
		of.lost = time.Now()
	}
}

// forget notes that a database has no queue.
func (d *Depths) forget(database string) { d.edit(func() { delete(d.databases, database) }) }

// retain forgets the databases that are not in the map exists. For every other database it calls the callback served.
// If served returns false, retain notes that the database's queue has lost its session.
func (d *Depths) retain(exists map[string]bool, served func(database string) bool) {
	d.edit(func() {
		for name, of := range d.databases {
			switch {
			case !exists[name]:
				delete(d.databases, name)
			case !served(name):
				of.lose()
			}
		}
	})
}

// end notes that all queues have lost their sessions.
func (d *Depths) end() {
	d.edit(func() {
		for _, of := range d.databases {
			of.lose()
		}
	})
}

// due reports whether it is time to measure the length of a database's queue again.
func (d *Depths) due(database string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.databases[database]
	return of == nil || !time.Now().Before(of.next)
}

// depthSQL returns the number of queued requests, the time of the oldest one, and whether this role sees all of them.
const depthSQL = `
SELECT ARRAY[count(*)::float8, coalesce(extract(epoch FROM min(q.requested_at)), 0)::float8,
             (NOT row_security_active('backtrace.request')
              OR pg_has_role('pg_read_all_stats', 'USAGE'))::int::float8]
FROM backtrace.request q WHERE q.state = 'queued'`

// measure measures the length of the database's queue, if that is due.
func (s *session) measure(ctx context.Context) error {
	d := s.cfg.Depths
	if d == nil || !d.due(s.database) {
		return nil
	}
	var figures []float64
	err := s.withTimeout(ctx, func(ctx context.Context) error { return runGuarded(ctx, s.conn, &figures, depthSQL) })
	var refused *pgconn.PgError
	if errors.As(err, &refused) && !errors.Is(err, errAbsent) {
		// A session of another program may lock the table for a long time. The queue is served nevertheless.
		s.log.Debug().Err(err).Msg("the length of the queue is not known")
		d.skip(s.database)
		return s.withTimeout(ctx, func(ctx context.Context) error {
			_, err := s.conn.Exec(ctx, "ROLLBACK")
			return err
		})
	}
	if err != nil || len(figures) != 3 || figures[2] == 0 {
		d.skip(s.database)
		return err
	}
	of := depth{queued: int(figures[0]), claimed: len(s.jobs)}
	if of.queued > 0 {
		of.oldest = time.UnixMicro(int64(figures[1] * 1e6))
	}
	d.set(s.database, of)
	return nil
}
