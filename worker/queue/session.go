package queue

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/rs/zerolog"
)

const (
	// operation bounds one transaction. A commit can hang behind another one's (NOTIFY takes its turn in a global
	// lock); then the claim's transaction goes on or fails by itself, and a new session works beside it.
	operation = 30 * time.Second
	// overdue is how long a session may stay that has something under way and is to leave.
	overdue = 15 * time.Second
	// farewell is how long an operation may still take when the session is to end.
	farewell = time.Second
	// pruneEvery and pruneAfter say when old rows are removed: after that time, or that many new rows.
	pruneEvery = time.Minute
	// compareEvery says how often the extension's objects are compared with what its script makes.
	compareEvery = 10 * time.Second
	pruneAfter   = 1000
	// pruneBatch is the number of rows removed at a time; larger than pruneAfter, so that it keeps up.
	pruneBatch = 2000
)

// session is the worker's session in one database, from its start to its end. One goroutine has it; wake alone may be
// called by others.
type session struct {
	cfg      *Config
	log      zerolog.Logger
	database string
	conn     *pgx.Conn
	ascii    bool // the database takes no other characters

	jobs     map[int64]*job       // under way, or done and not yet written
	over     map[uint32]time.Time // roles over their rate, and until when they wait
	notified bool                 // a notification came since the last claim
	lease    *lease               // the right to be there; its signal says that something else is to be done
	written  int                  // rows since the last prune
	pruned   time.Time
	compared time.Time // the extension's objects with what its script makes
}

// open connects to a database, and looks for the extension. Without it the error wraps errAbsent.
func open(ctx context.Context, cfg *Config, database string, lease *lease) (*session, error) {
	s := &session{
		cfg: cfg, log: cfg.Log.With().Str("database", database).Logger(), database: database,
		jobs: map[int64]*job{}, over: map[uint32]time.Time{}, lease: lease,
	}
	conn, err := cfg.Connect(ctx, database, func(*pgconn.PgConn, *pgconn.Notification) { s.notified = true })
	if err != nil {
		return nil, err
	}
	s.conn = conn
	if err := s.look(ctx); err != nil {
		s.close(ctx)
		return nil, err
	}
	s.ascii = conn.PgConn().ParameterStatus("server_encoding") != "UTF8"
	return s, nil
}

// look finds out whether there is anything to serve.
func (s *session) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operation)
	defer cancel()
	var version *string
	var whole, granted bool
	if err := s.conn.QueryRow(ctx, probe).Scan(&version, &whole, &granted); err != nil {
		return fmt.Errorf("looking for the extension: %w", err)
	}
	switch {
	case version == nil:
		return errNone
	case !whole:
		return fmt.Errorf("%w: version %s of the extension has none that this worker knows", errAbsent, *version)
	case !granted:
		return fmt.Errorf("%w: the worker's role %q has no EXECUTE privilege on the functions "+
			"backtrace.claim, finish, journal and prune", errAbsent, s.conn.Config().User)
	}
	return s.compare(ctx)
}

// run serves until ctx ends or the session breaks. It closes the session.
func (s *session) run(ctx context.Context) error {
	defer s.close(ctx)
	s.cfg.Journal.attach(s)
	defer s.cfg.Journal.detach(s)
	err := s.serve(ctx)
	if ctx.Err() != nil && !s.conn.IsClosed() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		err = s.flush(last)
	}
	return err
}

// serve listens first: what is notified from then on is not missed, what was there before is found by the first claim.
func (s *session) serve(ctx context.Context) error {
	jobs, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop() // nobody waits for what is under way: it is claimed again
	err := s.bounded(ctx, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, "LISTEN "+channel)
		return err
	})
	if err == nil {
		err = s.bounded(ctx, s.renew)
	}
	for err == nil && ctx.Err() == nil {
		if err = s.round(ctx, jobs); err != nil || s.leaves() {
			break
		}
		if ctx.Err() == nil {
			err = s.wait(ctx)
		}
	}
	return err
}

// renew has the key of an extension of version 1.1 made anew, if it was made for another cluster.
func (s *session) renew(ctx context.Context) error {
	var keyed, renewed bool
	if err := s.conn.QueryRow(ctx, keyedSQL).Scan(&keyed); err != nil || !keyed {
		return err
	}
	return once(ctx, s.conn, &renewed, renewSQL)
}

// leaves reports whether the session is to end because its place is needed. What is under way has some time to end: it
// would be claimed again, and captured once more.
func (s *session) leaves() bool {
	return s.lease.leave.Load() && (len(s.jobs) == 0 || time.Since(s.lease.since) > overdue)
}

// round does all that is to be done.
func (s *session) round(ctx, jobs context.Context) error {
	for more := true; more && ctx.Err() == nil; {
		s.notified = false
		if err := s.bounded(ctx, func(ctx context.Context) (err error) {
			more, err = s.batch(ctx, jobs)
			return err
		}); err != nil {
			return err
		}
		if err := s.bounded(ctx, s.flush); err != nil {
			return err
		}
		if err := s.prune(ctx); err != nil {
			return err
		}
		if err := s.measure(ctx); err != nil {
			return err
		}
		more = more || s.notified // last: it may have come during any of these, and comes but once
	}
	return nil
}

// bounded gives f the time of an operation, and a second when ctx ends in it.
func (s *session) bounded(ctx context.Context, f func(context.Context) error) error {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), operation)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(farewell, cancel) })
	defer stop()
	return f(bound)
}

// wait returns when there is a notification, a call of wake, or nothing for the time of a poll.
func (s *session) wait(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, s.cfg.Poll)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-s.lease.signal:
			cancel()
		case <-waiting.Done():
		}
	}()
	err := s.conn.PgConn().WaitForNotification(waiting)
	interrupted := waiting.Err() != nil
	cancel()
	<-done
	if interrupted && !s.conn.IsClosed() {
		return nil
	}
	return err
}

// wake makes the session look for something to do. It does not block.
func (s *session) wake() { s.lease.wake() }

// flush writes the rows of waiting calls.
func (s *session) flush(ctx context.Context) error {
	for {
		rows := s.cfg.Journal.take(s.database)
		if len(rows) == 0 {
			return nil
		}
		if err := s.record(ctx, rows); err != nil {
			s.cfg.Journal.putBack(s.database, rows)
			return fmt.Errorf("writing the journal: %w", err)
		}
		s.written += len(rows)
	}
}

func (s *session) record(ctx context.Context, rows []Row) error {
	n := len(rows)
	verbs, names := make([]string, 0, n), make([]string, 0, n)
	callers, backends, pids := make([]uint32, 0, n), make([]int32, 0, n), make([]*int32, 0, n)
	asked, finished := make([]time.Time, 0, n), make([]time.Time, 0, n)
	c := newColumns(n)
	for _, r := range rows {
		verbs, names = append(verbs, r.Verb), append(names, Printable(r.CallerName, s.ascii))
		callers, backends = append(callers, r.Caller), append(backends, int32(r.Backend))
		var pid *int32
		if r.PID != 0 {
			target := int32(r.PID)
			pid = &target
		}
		pids = append(pids, pid)
		asked, finished = append(asked, r.Requested), append(finished, r.Finished)
		c.add(r.Result.printable(s.ascii))
	}
	return once(ctx, s.conn, nil, journalSQL, verbs, callers, names, backends, pids, asked, finished,
		c.engines, c.pauses, c.depths, c.states, c.messages, c.details, c.hints)
}

// prune removes old rows, and compares the objects, when it is time to.
func (s *session) prune(ctx context.Context) error {
	if time.Since(s.compared) >= compareEvery {
		if err := s.bounded(ctx, s.compare); err != nil {
			return err
		}
	}
	if s.written < pruneAfter && time.Since(s.pruned) < pruneEvery {
		return nil
	}
	s.written, s.pruned = 0, time.Now()
	for gone := pruneBatch; gone == pruneBatch && ctx.Err() == nil; {
		if err := s.bounded(ctx, func(ctx context.Context) error {
			return once(ctx, s.conn, &gone, pruneSQL, s.cfg.Keep, int64(s.cfg.KeepRows), pruneBatch)
		}); err != nil {
			return fmt.Errorf("removing old requests: %w", err)
		}
	}
	return nil
}

// report logs what came of a request.
func (s *session) report(j *job) {
	r := &j.request
	event := s.log.Info().Str("verb", r.Verb).Int("pid", r.PID).Str("role", r.CallerName).Int64("request", r.ID).
		Dur("waited_ms", r.Waited)
	if j.result.SQLState != "" {
		event.Str("sqlstate", j.result.SQLState).Str("error", j.result.Message).Msg("queued request failed")
		return
	}
	event.Str("engine", j.result.Engine).Dur("pause_ms", j.result.Pause).Int("frames", j.result.Depth).
		Msg("queued request")
}

// close ends the session. While the worker runs it waits until the server has given the slot back, which another
// session of the worker may take then.
func (s *session) close(ctx context.Context) {
	patience := operation
	if ctx.Err() != nil {
		patience = farewell
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	last, err := s.conn.PgConn().Hijack()
	if err != nil { // it is closed, or in the middle of something
		_ = s.conn.Close(ctx)
		return
	}
	defer func() { _ = last.Conn.Close() }() // there is nothing left to lose
	if deadline, ok := ctx.Deadline(); ok {
		_ = last.Conn.SetDeadline(deadline)
	}
	last.Frontend.Send(&pgproto3.Terminate{})
	if last.Frontend.Flush() == nil {
		_, _ = io.Copy(io.Discard, last.Conn) // the server hangs up last
	}
}
