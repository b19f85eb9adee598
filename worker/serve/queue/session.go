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

	"pg_stat_backtrace/worker/host"
)

const (
	// operationTimeout is the time limit of one transaction. A commit with NOTIFY may wait for another commit, because NOTIFY
	// takes a global lock. After the timeout, the worker opens a new session, and the server ends the transaction by itself.
	operationTimeout = 30 * time.Second
	// leaveTimeout is the time for which a session with running requests may stay after the budget has asked it to leave.
	leaveTimeout = 15 * time.Second
	// endTimeout is the time limit of an operation after the session has to end.
	endTimeout = time.Second
	// claimPause is the shortest time between two claims that notifications cause, if the earlier claim found no request. It
	// limits the cost of notifications without a request, which every role that can connect to the database may send.
	claimPause = 50 * time.Millisecond
	// Old rows are removed after pruneEvery, or after pruneAfter new rows.
	pruneEvery = time.Minute
	// compareEvery is the interval at which the extension's objects are compared with its script; see compare.
	compareEvery = 10 * time.Second
	pruneAfter   = 1000
	// pruneBatch is the number of rows removed at a time. It is larger than pruneAfter, so that the removal keeps up.
	pruneBatch = 2000
)

// session is the worker's session in one database. Only one goroutine uses it, except that every goroutine may call wake.
type session struct {
	cfg      *Config
	log      zerolog.Logger
	database string
	conn     *pgx.Conn
	ascii    bool // the database accepts only ASCII

	jobs     map[int64]*job       // requests that run, or whose results are not written yet, by id
	overRate map[uint32]time.Time // roles that have exceeded their rate, with the end of their pause
	notified bool                 // a notification has arrived since the last claim
	found    int                  // number of requests that the last claim found
	emptied  time.Time            // when a notification last caused a claim that found no request
	lease    *lease               // the right to have this session; its signal wakes the session
	written  int                  // rows written since the last prune
	pruned   time.Time            // time of the last prune
	compared time.Time            // when the extension's objects were last compared
}

// open connects to a database and checks that it has a queue. If it has none, the error wraps errAbsent.
func open(ctx context.Context, cfg *Config, k *databaseLoop, lease *lease) (*session, error) {
	s := &session{
		cfg: cfg, log: cfg.Log.With().Str("database", k.name).Logger(), database: k.name,
		jobs: map[int64]*job{}, overRate: map[uint32]time.Time{}, lease: lease,
	}
	conn, err := cfg.Connect(ctx, k.raw, func(*pgconn.PgConn, *pgconn.Notification) { s.notified = true })
	if err != nil {
		return nil, err
	}
	s.conn = conn
	s.ascii = conn.PgConn().ParameterStatus("server_encoding") != "UTF8"
	err = s.receiveRaw(ctx)
	if err == nil {
		err = s.checkExtension(ctx)
	}
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

// receiveRaw makes the server send all texts as they are. Settings, names and notifications of other roles may have bytes
// without an equivalent in UTF-8. The server would refuse to convert them, and no claim would succeed. In the other direction,
// texts for a database that is not in UTF-8 are ASCII.
func (s *session) receiveRaw(ctx context.Context) error {
	if !s.ascii {
		return nil // the server does not convert
	}
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	if _, err := s.conn.Exec(ctx, "SET client_encoding = 'SQL_ASCII'"); err != nil {
		return fmt.Errorf("setting client_encoding: %w", err)
	}
	return nil
}

// checkExtension returns an error if the database has no queue that this session can serve: errNone or errAbsent, or
// errStrange.
func (s *session) checkExtension(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
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

// run serves until ctx ends, the session must leave, or its connection breaks. At the end it closes the session.
func (s *session) run(ctx context.Context) error {
	defer s.close(ctx)
	s.cfg.Journal.attach(s)
	defer s.cfg.Journal.detach(s)
	err := s.serve(ctx)
	if ctx.Err() != nil && !s.conn.IsClosed() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		err = s.flush(last)
	}
	return err
}

// serve listens for notifications first, and then claims. So its first claim finds earlier requests, and notifications tell it
// about later requests.
func (s *session) serve(ctx context.Context) error {
	jobs, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop() // abandon the requests that still run: another session will claim them again
	err := s.withTimeout(ctx, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, "LISTEN "+channel)
		return err
	})
	if err == nil {
		err = s.withTimeout(ctx, s.renew)
	}
	for err == nil && ctx.Err() == nil {
		if err = s.runPending(ctx, jobs); err != nil || s.mustLeave() {
			break
		}
		if ctx.Err() == nil {
			err = s.wait(ctx)
		}
	}
	return err
}

// renew makes a new key if the extension keeps a key in the database (version 1.1) and pg_upgrade has copied this key from
// another cluster.
func (s *session) renew(ctx context.Context) error {
	var keyed, renewed bool
	if err := s.conn.QueryRow(ctx, keyedSQL).Scan(&keyed); err != nil || !keyed {
		return err
	}
	return runGuarded(ctx, s.conn, &renewed, renewSQL)
}

// mustLeave reports whether the session has to end because the budget has asked it to leave. The session stays for at most
// leaveTimeout to finish running requests, because otherwise another session would run them again.
func (s *session) mustLeave() bool {
	return s.lease.leave.Load() && (len(s.jobs) == 0 || time.Since(s.lease.asked) > leaveTimeout)
}

// runPending does all pending work: requests, the journal and housekeeping. It returns earlier if the session must leave.
func (s *session) runPending(ctx, jobs context.Context) error {
	for more := true; more && ctx.Err() == nil; more = more && !s.mustLeave() {
		s.pauseClaims(ctx)
		notified := s.notified
		s.notified = false
		if err := s.withTimeout(ctx, func(ctx context.Context) (err error) {
			more, err = s.batch(ctx, jobs)
			return err
		}); err != nil {
			return err
		}
		if notified && s.found == 0 {
			s.emptied = time.Now()
		}
		if err := s.withTimeout(ctx, s.flush); err != nil {
			return err
		}
		if err := s.prune(ctx); err != nil {
			return err
		}
		if err := s.measure(ctx); err != nil {
			return err
		}
		more = more || s.notified // read here, because a notification may have arrived during the steps above
	}
	return nil
}

// pauseClaims waits before a claim that a notification causes, if such a claim has found no request within the last
// claimPause.
func (s *session) pauseClaims(ctx context.Context) {
	left := claimPause - time.Since(s.emptied)
	if !s.notified || left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.lease.signal:
	case <-timer.C:
	}
}

// withTimeout runs f with the time limit operationTimeout. If ctx ends, f has endTimeout to finish.
func (s *session) withTimeout(ctx context.Context, f func(context.Context) error) error {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(endTimeout, cancel) })
	defer stop()
	return f(bound)
}

// wait waits for a notification or a call of wake, but at most for about the time Config.Poll.
func (s *session) wait(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, host.AlignedDelay(s.cfg.Poll))
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

// wake makes the session check for work. It does not block.
func (s *session) wake() { s.lease.wake() }

// flush writes the journal's rows of this database.
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
	return runGuarded(ctx, s.conn, nil, journalSQL, verbs, callers, names, backends, pids, asked, finished,
		c.engines, c.pauses, c.depths, c.states, c.messages, c.details, c.hints)
}

// prune removes old rows and compares the extension's objects with its script, each at its interval.
func (s *session) prune(ctx context.Context) error {
	if time.Since(s.compared) >= compareEvery {
		if err := s.withTimeout(ctx, s.compare); err != nil {
			return err
		}
	}
	if s.written < pruneAfter && time.Since(s.pruned) < pruneEvery {
		return nil
	}
	s.written, s.pruned = 0, time.Now()
	for gone := pruneBatch; gone == pruneBatch && ctx.Err() == nil; {
		if err := s.withTimeout(ctx, func(ctx context.Context) error {
			return runGuarded(ctx, s.conn, &gone, pruneSQL, s.cfg.Keep, int64(s.cfg.KeepRows), pruneBatch)
		}); err != nil {
			return fmt.Errorf("removing old requests: %w", err)
		}
	}
	return nil
}

// report logs the result of a request.
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

// close ends the session. It waits until the server has freed the connection slot, so that another session of the worker can
// use it. If the worker ends (ctx has ended), it waits for at most endTimeout.
func (s *session) close(ctx context.Context) {
	patience := operationTimeout
	if ctx.Err() != nil {
		patience = endTimeout
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	last, err := s.conn.PgConn().Hijack()
	if err != nil { // the connection is closed already, or still busy
		_ = s.conn.Close(ctx)
		return
	}
	defer func() { _ = last.Conn.Close() }() // no error matters: everything is written
	if deadline, ok := ctx.Deadline(); ok {
		_ = last.Conn.SetDeadline(deadline)
	}
	last.Frontend.Send(&pgproto3.Terminate{})
	if last.Frontend.Flush() == nil {
		_, _ = io.Copy(io.Discard, last.Conn) // wait until the server has closed the connection
	}
}
