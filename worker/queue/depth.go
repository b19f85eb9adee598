package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Depths has the lengths of the queues of all databases. The zero value is ready. A nil Depths stores nothing.
type Depths struct {
	mu        sync.Mutex
	databases map[string]*depth
}

// depth is the length of one queue.
type depth struct {
	measured time.Time
	queued   int       // rows, the claimed ones included
	oldest   time.Time // when the oldest of them was made; zero: there are none
	claimed  int
	unknown  bool // it cannot be measured
}

const (
	// measureEvery is how often a session measures the length of its queue.
	measureEvery = 10 * time.Second
	// measuredUntil is how long a length is valid. A session that has left its database measures no longer.
	measuredUntil = 10 * time.Minute
)

// Sum returns the number of waiting requests, the number of running ones, and the age of the oldest request. It
// returns false if no database has a queue, or if the worker's role may not see the requests of other roles.
func (d *Depths) Sum() (waiting, claimed int, oldest time.Duration, ok bool) {
	if d == nil {
		return 0, 0, 0, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for name, of := range d.databases {
		if now.Sub(of.measured) > measuredUntil {
			delete(d.databases, name)
			continue
		}
		if of.unknown {
			continue
		}
		ok = true
		waiting += max(0, of.queued-of.claimed)
		claimed += of.claimed
		if !of.oldest.IsZero() {
			oldest = max(oldest, now.Sub(of.oldest))
		}
	}
	return waiting, claimed, oldest, ok
}

// set stores a measurement of a session.
func (d *Depths) set(database string, of depth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.databases == nil {
		d.databases = make(map[string]*depth)
	}
	d.databases[database] = &of
}

// skip notes that the length of a queue is not known now.
func (d *Depths) skip(database string) { d.set(database, depth{measured: time.Now(), unknown: true}) }

// due reports whether the length of a queue is to be measured again.
func (d *Depths) due(database string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.databases[database]
	return of == nil || time.Since(of.measured) >= measureEvery
}

// depthSQL returns the number of queued requests, the time of the oldest one, and whether this role sees all of them.
const depthSQL = `
SELECT ARRAY[count(*)::float8, coalesce(extract(epoch FROM min(q.requested_at)), 0)::float8,
             (NOT row_security_active('backtrace.request')
              OR pg_has_role('pg_read_all_stats', 'USAGE'))::int::float8]
FROM backtrace.request q WHERE q.state = 'queued'`

// measure counts the requests of the database at an interval.
func (s *session) measure(ctx context.Context) error {
	d := s.cfg.Depths
	if d == nil || !d.due(s.database) {
		return nil
	}
	var figures []float64
	err := s.withTimeout(ctx, func(ctx context.Context) error { return runGuarded(ctx, s.conn, &figures, depthSQL) })
	var refused *pgconn.PgError
	if errors.As(err, &refused) && !errors.Is(err, errAbsent) {
		// The queue is served all the same, if another session has locked the table for longer than a moment.
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
	of := depth{measured: time.Now(), queued: int(figures[0]), claimed: len(s.jobs)}
	if of.queued > 0 {
		of.oldest = time.UnixMicro(int64(figures[1] * 1e6))
	}
	d.set(s.database, of)
	return nil
}
