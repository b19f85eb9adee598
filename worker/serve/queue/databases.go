package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/spool"
)

// maxVisits is the largest number of databases in which the queue opens a session at the same time.
const maxVisits = 4

// Queue serves the databases of a server until the server stops.
type Queue struct {
	cfg    Config
	visits chan struct{}
	budget *budget
	// warned is the last logged message about scarce connection slots, and warnedAt is its time. The number of free
	// slots changes often, and must not fill the log.
	warned   string
	warnedAt time.Time
	failed   string            // the last logged error of scan; empty: the last scan succeeded
	names    map[uint32]string // the names of the databases at the last successful scan

	mu    sync.Mutex
	loops map[uint32]*databaseLoop
}

// New returns a queue. The caller must call Run to serve it.
func New(cfg Config) *Queue {
	cfg.setDefaults()
	return &Queue{
		cfg: cfg, visits: make(chan struct{}, maxVisits), loops: map[uint32]*databaseLoop{}, budget: &budget{stay: cfg.Stay},
	}
}

// database is a database that accepts connections.
type database struct {
	oid  uint32
	name string // as in spool.Request, so with escapes if it is not in UTF-8
	raw  string // the bytes of the name
	// wanted means that a session of another program has locked the database to drop, rename or copy it, and waits until the
	// other sessions in the database end.
	wanted bool
	// limit is the database's CONNECTION LIMIT; below 0: no limit. others is the number of sessions of other programs in the
	// database; 0 if no database has a limit.
	limit, others int
}

// full reports whether a session of the worker would take the last slot of the database.
func (d database) full() bool { return d.limit >= 0 && d.others+1 >= d.limit }

// Run serves until ctx ends, and then ends its sessions. Requests whose results are not written stay in the queue.
func (q *Queue) Run(ctx context.Context) {
	q.cfg.Journal.onNewcomer(q.visit)
	defer q.cfg.Journal.onNewcomer(nil)
	defer q.end()
	retry := minScan
	for {
		pause := q.cfg.Scan
		if q.scan(ctx) {
			retry = minScan
		} else { // the main session is starting or reconnecting
			pause = retry
			retry = min(2*retry, q.cfg.Scan)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(host.AlignedDelay(pause)):
		}
	}
}

// minScan is the first pause after a failed attempt to list the databases.
const minScan = 10 * time.Millisecond

// scan starts and ends sessions so that each database has one. It returns false if it could not list the databases.
func (q *Queue) scan(ctx context.Context) bool {
	for database, n := range q.cfg.Journal.lost() {
		q.cfg.Log.Warn().Str("database", database).Int("rows", n).
			Msg("the journal cannot keep up: rows of waiting calls were dropped")
	}
	found, exist, slots, recovering, err := q.databases(ctx)
	if err != nil {
		q.reportScan(err)
		return false // the sessions of the queue continue
	}
	q.failed = ""
	if !recovering {
		q.share(slots, found)
	}
	q.cfg.Journal.suspend(recovering)
	q.mu.Lock()
	defer q.mu.Unlock()
	there, names := make(map[uint32]bool, len(found)), make(map[string]bool, len(found))
	served := make(map[string]bool, len(found))
	for _, d := range found {
		names[d.name] = true
		k := q.loops[d.oid]
		if d.wanted || d.full() || k != nil && k.name != d.name {
			continue // the database was renamed: a later scan starts a loop with the new name
		}
		there[d.oid] = true
		if k == nil {
			q.cfg.Depths.expect(d.name)
			q.loops[d.oid] = q.startLoop(ctx, d)
		}
		served[d.name] = true
	}
	q.cfg.Journal.rename(q.renamed(found))
	q.cfg.Journal.retain(names)
	q.cfg.Depths.retain(exist, func(name string) bool { return served[name] })
	for oid, k := range q.loops {
		if !there[oid] {
			k.cancel()
			delete(q.loops, oid)
		}
	}
	return true
}

// renamed returns the databases that were renamed since its last call.
func (q *Queue) renamed(found []database) (list []renaming) {
	names := make(map[uint32]string, len(found))
	for _, d := range found {
		names[d.oid] = d.name
		if former := q.names[d.oid]; former != "" && former != d.name {
			list = append(list, renaming{former: former, name: d.name})
		}
	}
	q.names = names
	return list
}

// reportScan logs the server's error if it is a new one. The main session logs the end of a connection.
func (q *Queue) reportScan(err error) {
	var answer *pgconn.PgError
	if errors.As(err, &answer) && err.Error() != q.failed {
		q.failed = err.Error()
		q.cfg.Log.Warn().Err(err).Msg("the databases cannot be listed: new queues are not served")
	}
}

// warnEvery is the shortest interval of messages about scarce slots.
const warnEvery = time.Minute

// share sets the number of sessions that the queue may have now: Config.Sessions without the main session, or fewer if other
// clients need the connection slots.
func (q *Queue) share(slots cluster.Slots, found []database) {
	most := q.cfg.Sessions
	if most <= 0 {
		most = slots.Sessions()
	}
	most--
	free := slots.Ordinary() - (slots.Used - q.budget.used()) - slots.Spare()
	if slots.Role.Limit >= 0 {
		free = min(free, slots.Role.Limit-(slots.Role.Used-q.budget.used())-1)
	}
	q.budget.resize(max(0, min(most, free)))
	reason := fullDatabases(found)
	if free < min(most, len(found)) {
		reason = "few connection slots are left"
	}
	if reason != q.warned && time.Since(q.warnedAt) > warnEvery {
		q.warned, q.warnedAt = reason, time.Now()
		if reason != "" {
			q.cfg.Log.Warn().Str("reason", reason).Int("max_connections", slots.Max).Int("reserved", slots.Reserved).
				Int("used", slots.Used).Int("sessions", max(0, min(most, free))).Int("sessions_most", most).
				Msg("queues are served less often, or not at all, to leave connection slots to others")
		}
	}
}

// fullDatabases names the databases that have no slot for the worker, at most 10 of them; empty: there are none.
func fullDatabases(found []database) string {
	const most = 10
	var list []string
	for _, d := range found {
		switch {
		case d.full() && len(list) < most:
			list = append(list, fmt.Sprintf("database %q has CONNECTION LIMIT %d", d.name, d.limit))
		case d.full():
			return strings.Join(append(list, "and others"), "; ")
		}
	}
	return strings.Join(list, "; ")
}

const recoverySQL = `SELECT pg_catalog.pg_is_in_recovery()`

// databaseSQL lists the databases, and whether each accepts connections. DROP DATABASE, RENAME and CREATE DATABASE … TEMPLATE
// lock a database and wait some seconds for other sessions to end, so the worker ends its sessions. A datconnlimit of -2
// marks a database whose DROP failed. $1 has the pids of the worker's sessions, because some roles cannot see session
// names.
//
// While pg_locks is read, the server's lock table cannot change. So the statement reads it once, and only if another
// session has been executing a statement for more than 0.2 seconds: a command that waits for the worker's sessions
// waits for up to five seconds. Sessions whose state the worker cannot see are treated as active.
//
// The sessions of all databases are counted at once, and only if a database has a CONNECTION LIMIT.
//
// The name is fetched in bytes: it has the encoding of the database in which it was given.
var databaseSQL = `
WITH active AS MATERIALIZED (
    SELECT FROM pg_catalog.pg_stat_activity a
    WHERE a.usesysid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid() AND a.pid <> ALL ($1::int[])
      AND coalesce(a.backend_type, '') NOT IN ('logical replication launcher', 'walsender')
      AND (a.state IS NULL OR a.state = 'active'
           AND coalesce(a.query_start < pg_catalog.clock_timestamp() - interval '0.2 seconds', true))
), locked AS MATERIALIZED (
    SELECT l.objid FROM pg_catalog.pg_locks l
    WHERE (SELECT EXISTS (SELECT FROM active))
      AND l.locktype = 'object' AND l.classid = 'pg_catalog.pg_database'::pg_catalog.regclass
      AND l.mode IN ('ShareLock', 'AccessExclusiveLock')
), used AS MATERIALIZED (
    SELECT a.datid, count(*) AS n FROM pg_catalog.pg_stat_activity a
    WHERE (SELECT EXISTS (SELECT FROM pg_catalog.pg_database x WHERE x.datconnlimit >= 0))
      AND a.usesysid IS NOT NULL AND a.pid <> ALL ($1::int[])
      AND coalesce(a.backend_type, 'client backend') IN ('client backend', 'walsender')
    GROUP BY a.datid
)
SELECT d.oid, ` + cluster.RawText("d.datname") + `, d.oid IN (SELECT k.objid FROM locked k),
       d.datconnlimit, coalesce(u.n, 0),
       d.datallowconn AND NOT d.datistemplate AND pg_catalog.has_database_privilege(d.oid, 'CONNECT')
FROM pg_catalog.pg_database d LEFT JOIN used u ON u.datid = d.oid
WHERE d.datconnlimit <> -2
ORDER BY d.oid`

// databases lists the databases to serve (found) and the names of all databases (exist), and reads the connection
// slots. During recovery, both lists are empty. It sends all statements at once, so that an idle worker wakes up once
// for the results.
func (q *Queue) databases(ctx context.Context) (
	found []database, exist map[string]bool, slots cluster.Slots, recovering bool, err error,
) {
	err = q.cfg.Server.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		found, exist = nil, make(map[string]bool) // the function may be called again
		var all pgx.Batch
		all.Queue(recoverySQL).QueryRow(func(row pgx.Row) error { return row.Scan(&recovering) })
		cluster.QueueSlots(&all, &slots)
		all.Queue(databaseSQL, q.processes()).Query(func(rows pgx.Rows) error {
			var d database
			var name []byte
			var open bool
			fields := []any{&d.oid, &name, &d.wanted, &d.limit, &d.others, &open}
			_, err := pgx.ForEachRow(rows, fields, func() error {
				d.raw, d.name = string(name), spool.Text(name)
				exist[d.name] = true
				if open {
					found = append(found, d)
				}
				return nil
			})
			return err
		})
		if err := conn.SendBatch(ctx, &all).Close(); err != nil {
			return fmt.Errorf("listing databases: %w", err)
		}
		return nil
	})
	if recovering { // there are no queues
		return nil, nil, slots, true, err
	}
	return found, exist, slots, false, err
}

// processes returns the pids of the backends of the queue's sessions.
func (q *Queue) processes() []int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	pids := make([]int32, 0, len(q.loops))
	for _, k := range q.loops {
		if pid := k.backend.Load(); pid != 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// visit makes the loop of a database check soon whether it has a queue. It is called when a call has come from this database,
// which shows that the database has the extension.
func (q *Queue) visit(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.loops {
		if k.name == name {
			k.retrySoon()
			q.budget.promote(name)
		}
	}
}

// end ends all sessions and waits for them.
func (q *Queue) end() {
	q.mu.Lock()
	loops := q.loops
	q.loops = map[uint32]*databaseLoop{}
	q.mu.Unlock()
	for _, k := range loops {
		k.cancel()
	}
	for _, k := range loops {
		<-k.done
	}
	q.cfg.Depths.end()
}

// databaseLoop serves one database.
type databaseLoop struct {
	name   string
	raw    string // the bytes of the name; see database
	cancel context.CancelFunc
	done   chan struct{}
	soon   chan struct{}
	known  bool // the queue has served the database before and has logged that
	// backend is the pid of the session's server process; 0 if there is no session.
	backend atomic.Int32
}

func (k *databaseLoop) retrySoon() {
	select {
	case k.soon <- struct{}{}:
	default:
	}
}

func (q *Queue) startLoop(ctx context.Context, d database) *databaseLoop {
	ctx, cancel := context.WithCancel(ctx)
	k := &databaseLoop{name: d.name, raw: d.raw, cancel: cancel, done: make(chan struct{}), soon: make(chan struct{}, 1)}
	go func() {
		defer close(k.done)
		defer cancel()
		q.runLoop(ctx, k)
	}()
	return k
}

// runLoop serves a database until ctx ends. If the database has no queue, or no session can be opened, it tries again after
// growing pauses.
func (q *Queue) runLoop(ctx context.Context, k *databaseLoop) {
	log := q.cfg.Log.With().Str("database", k.name).Logger()
	logged := ""
	pause := q.cfg.MinLook
	for ctx.Err() == nil {
		began := time.Now()
		served, err := q.serve(ctx, k)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errAbsent) {
			q.cfg.Journal.discard(k.name)
		}
		switch {
		case err == nil:
		case errors.Is(err, errNone), errors.Is(err, errAbsent) && !k.known:
			q.cfg.Depths.forget(k.name)
		default:
			q.cfg.Depths.lose(k.name)
		}
		if served && time.Since(began) > q.cfg.MinLook {
			pause, logged = q.cfg.MinLook, ""
		}
		switch {
		case err == nil || logged == err.Error():
		case errors.Is(err, errNone):
			log.Debug().Err(err).Msg("the queue is not served")
		default:
			log.Warn().Err(err).Msg("the queue is not served")
		}
		if err != nil {
			logged = err.Error()
		}
		if served && err == nil {
			continue // the session ended so that another database can have one: wait for a lease again at once
		}
		if !q.pauseLoop(ctx, k, pause) {
			return
		}
		pause = min(2*pause, q.maxPause())
	}
}

// pauseLoop waits for the time pause. A call of retrySoon shortens this time to Config.MinLook. pauseLoop returns false if ctx
// has ended.
func (q *Queue) pauseLoop(ctx context.Context, k *databaseLoop, pause time.Duration) bool {
	least := time.Now().Add(q.cfg.MinLook)
	timer := time.NewTimer(host.AlignedDelay(pause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-k.soon:
		timer.Reset(time.Until(least))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return ctx.Err() == nil
}

// maxPause returns the longest pause between visits to a database without the extension. It grows with the number of
// databases, so that the visits need not open a new session all the time.
func (q *Queue) maxPause() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(q.cfg.MaxLook, time.Duration(len(q.loops))*time.Second)
}

// serve waits for a lease and opens a session in a database. If the database has a queue, it serves the queue until the
// session ends, and served is true.
func (q *Queue) serve(ctx context.Context, k *databaseLoop) (served bool, err error) {
	lease, err := q.budget.acquire(ctx, k.name, q.cfg.Journal.waits(k.name))
	if err != nil {
		return false, err
	}
	defer q.budget.release(lease)
	select {
	case q.visits <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	s, err := open(ctx, &q.cfg, k, lease)
	<-q.visits
	if err != nil {
		return false, err
	}
	q.cfg.Depths.open(k.name)
	k.backend.Store(int32(s.conn.PgConn().PID()))
	defer k.backend.Store(0)
	if log := &q.cfg.Log; k.known {
		log.Debug().Str("database", k.name).Msg("serving the queue")
	} else {
		log.Info().Str("database", k.name).Msg("serving the queue")
	}
	k.known = true
	return true, s.run(ctx)
}
