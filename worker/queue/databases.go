package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxVisits bounds the visits to databases, to see whether they have the extension, at a time.
const maxVisits = 4

// Queue serves the databases of one run of a server.
type Queue struct {
	cfg    Config
	visits chan struct{}

	mu      sync.Mutex
	keepers map[uint32]*keeper
}

// New makes a queue; Run serves it.
func New(cfg Config) *Queue {
	cfg.setDefaults()
	return &Queue{cfg: cfg, visits: make(chan struct{}, maxVisits), keepers: map[uint32]*keeper{}}
}

// database is one that can be connected to.
type database struct {
	oid  uint32
	name string
	// wanted: somebody has locked it against others (to drop, rename or copy it) and waits for sessions to go.
	wanted bool
}

// Run serves until ctx ends, and then ends its sessions; what they have not written stays queued.
func (q *Queue) Run(ctx context.Context) {
	q.cfg.Journal.onNewcomer(q.visit)
	defer q.cfg.Journal.onNewcomer(nil)
	defer q.end()
	retry := minScan
	for {
		pause := q.cfg.Scan
		if q.scan(ctx) {
			retry = minScan
		} else { // the main session comes up, or back
			pause = retry
			retry = min(2*retry, q.cfg.Scan)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// minScan is the first pause after a look at the databases that failed.
const minScan = 10 * time.Millisecond

// scan keeps the sessions in step with the databases. It returns false when it could not ask for them.
func (q *Queue) scan(ctx context.Context) bool {
	for database, n := range q.cfg.Journal.lost() {
		q.cfg.Log.Warn().Str("database", database).Int("rows", n).
			Msg("the journal cannot keep up: rows of waiting calls were dropped")
	}
	found, recovering, err := q.databases(ctx)
	if err != nil {
		return false // the worker's main session says why; what is served is served on
	}
	q.cfg.Journal.suspend(recovering)
	q.mu.Lock()
	defer q.mu.Unlock()
	there, names := make(map[uint32]bool, len(found)), make(map[string]bool, len(found))
	for _, d := range found {
		names[d.name] = true
		k := q.keepers[d.oid]
		if d.wanted || k != nil && k.name != d.name {
			continue // comes back when that is over, under its new name
		}
		there[d.oid] = true
		if k == nil {
			q.keepers[d.oid] = q.keep(ctx, d)
		}
	}
	q.cfg.Journal.retain(names)
	for oid, k := range q.keepers {
		if !there[oid] {
			k.cancel()
			delete(q.keepers, oid)
		}
	}
	return true
}

const recoverySQL = `SELECT pg_catalog.pg_is_in_recovery()`

// databaseSQL lists what can be connected to. DROP DATABASE, RENAME and CREATE DATABASE … TEMPLATE lock a database and
// then wait some seconds for its sessions to end: ours do. A datconnlimit of -2 marks a database whose dropping failed.
const databaseSQL = `
SELECT d.oid, d.datname,
       EXISTS (SELECT FROM pg_catalog.pg_locks l
               WHERE l.locktype = 'object' AND l.classid = 'pg_catalog.pg_database'::pg_catalog.regclass
                 AND l.objid = d.oid AND l.mode IN ('ShareLock', 'AccessExclusiveLock'))
FROM pg_catalog.pg_database d
WHERE d.datallowconn AND NOT d.datistemplate AND d.datconnlimit <> -2
  AND pg_catalog.has_database_privilege(d.oid, 'CONNECT')`

// databases asks for the databases to serve: none during recovery.
func (q *Queue) databases(ctx context.Context) (found []database, recovering bool, err error) {
	err = q.cfg.Server.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, recoverySQL).Scan(&recovering); err != nil || recovering {
			return err
		}
		rows, err := conn.Query(ctx, databaseSQL)
		if err != nil {
			return fmt.Errorf("listing databases: %w", err)
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d database, err error) {
			err = row.Scan(&d.oid, &d.name, &d.wanted)
			return d, err
		})
		return err
	})
	return found, recovering, err
}

// visit makes the keeper of a database look again soon: a call came from there, so it has the extension.
func (q *Queue) visit(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.keepers {
		if k.name == name {
			k.hurry()
		}
	}
}

// end ends all sessions and waits for them.
func (q *Queue) end() {
	q.mu.Lock()
	keepers := q.keepers
	q.keepers = map[uint32]*keeper{}
	q.mu.Unlock()
	for _, k := range keepers {
		k.cancel()
	}
	for _, k := range keepers {
		<-k.done
	}
}

// keeper looks after one database.
type keeper struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	soon   chan struct{}
}

func (k *keeper) hurry() {
	select {
	case k.soon <- struct{}{}:
	default:
	}
}

func (q *Queue) keep(ctx context.Context, d database) *keeper {
	ctx, cancel := context.WithCancel(ctx)
	k := &keeper{name: d.name, cancel: cancel, done: make(chan struct{}), soon: make(chan struct{}, 1)}
	go func() {
		defer close(k.done)
		defer cancel()
		q.follow(ctx, k)
	}()
	return k
}

// follow serves a database while ctx lasts. Where there is nothing to serve, or no session to be had, it looks again
// after a pause that grows.
func (q *Queue) follow(ctx context.Context, k *keeper) {
	log := q.cfg.Log.With().Str("database", k.name).Logger()
	told := ""
	pause := q.cfg.MinLook
	for ctx.Err() == nil {
		began := time.Now()
		served, err := q.serve(ctx, k.name)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errAbsent) {
			q.cfg.Journal.discard(k.name)
		}
		if served && time.Since(began) > q.cfg.MinLook {
			pause, told = q.cfg.MinLook, ""
		}
		switch {
		case err == nil || told == err.Error():
		case errors.Is(err, errNone):
			log.Debug().Err(err).Msg("the queue is not served")
		default:
			log.Warn().Err(err).Msg("the queue is not served")
		}
		if err != nil {
			told = err.Error()
		}
		if !q.rest(ctx, k, pause) {
			return
		}
		pause = min(2*pause, q.cfg.MaxLook)
	}
}

// rest waits, a shorter while if the keeper is told to hurry.
func (q *Queue) rest(ctx context.Context, k *keeper, pause time.Duration) bool {
	for _, step := range []struct {
		time  time.Duration
		hurry chan struct{}
	}{{q.cfg.MinLook, nil}, {pause - q.cfg.MinLook, k.soon}} {
		timer := time.NewTimer(step.time)
		select {
		case <-ctx.Done():
		case <-step.hurry:
		case <-timer.C:
		}
		timer.Stop()
	}
	return ctx.Err() == nil
}

// serve visits a database, and stays if it has a queue. Served is set if it had one.
func (q *Queue) serve(ctx context.Context, name string) (served bool, err error) {
	select {
	case q.visits <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	s, err := open(ctx, &q.cfg, name)
	<-q.visits
	if err != nil {
		return false, err
	}
	q.cfg.Log.Info().Str("database", name).Msg("serving the queue")
	return true, s.run(ctx)
}
