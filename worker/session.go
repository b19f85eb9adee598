package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/queue"
)

// lookPatience is the longest time for which Query waits until the method follow has noticed that the server was restarted and has
// opened a session. A request that finds the new server ends the pause of follow at once.
const lookPatience = 2 * time.Second

// A serverConn has the worker's connection for queries in one run of the server.
type serverConn struct {
	conn *cluster.Conn   // nil: there is no connection now
	run  cluster.Cluster // the run of the server to which conn leads
	// failure is the reason why the worker has no conn and is not about to open one; nil: it has a conn, or is about to open one.
	failure error
	over    chan struct{} // closed when another serverConn has replaced this one
}

// attach makes l the connection that Query uses.
func (w *Worker) attach(l *serverConn) {
	l.over = make(chan struct{})
	if old := w.link.Swap(l); old != nil {
		close(old.over)
	}
}

// connect keeps the worker's session open until this run of the server ends or begins to shut down, because a smart shutdown waits
// for every session. It serves the queues meanwhile. An error means that the connection string is wrong.
func (w *Worker) connect(ctx context.Context, c cluster.Cluster) error {
	options := w.sessionOptions(&c)
	options.Check = c.Welcome
	lost, report := make(chan struct{}, 1), w.report()
	options.OnChange = func(s cluster.ConnState) {
		report(s)
		if !s.Connected {
			select {
			case lost <- struct{}{}:
			default:
			}
		}
	}
	conn, err := cluster.NewConn(options)
	if err != nil {
		return fmt.Errorf("connection string: %w", err)
	}
	w.attach(&serverConn{conn: conn, run: c})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var queues sync.WaitGroup
	defer queues.Wait()
	queues.Go(func() { w.queue(c, conn).Run(ctx) })
	go func() {
		defer cancel()
		for c.Alive() && !c.Stopping() && w.pauseUntil(ctx, lost) {
		}
	}()
	_ = conn.Run(ctx) // returns when ctx ends
	w.noSession.begin()
	w.attach(&serverConn{})
	return nil
}

// queue returns the queue for one run of the server. main is the worker's session in that run.
func (w *Worker) queue(c cluster.Cluster, main *cluster.Conn) *queue.Queue {
	connect := func(
		ctx context.Context, database string, notified pgconn.NotificationHandler,
	) (*pgx.Conn, error) {
		config, err := cluster.SessionConfig(w.sessionOptions(&c), database)
		if err != nil {
			return nil, err
		}
		config.OnNotification = notified
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		conn, err := cluster.Connect(ctx, config)
		if err != nil {
			return nil, err
		}
		if err := c.Welcome(ctx, conn); err != nil {
			_ = conn.Close(ctx)
			return nil, err
		}
		return conn, nil
	}
	limiter := limits.NewLimiter(w.cfg.Limits)
	handle := func(ctx context.Context, req queue.Request) queue.Result { return w.verbs.CarryOut(ctx, req, limiter) }
	depths := &w.depths
	if w.metrics == nil {
		depths = nil // not measured, because this worker has no metrics
	}
	return queue.New(queue.Config{
		Server: main.Ordinary(), Connect: connect, Handle: handle, Journal: &w.ledger, Depths: depths, Limiter: limiter,
		Sessions: w.cfg.Sessions, Keep: w.cfg.Keep, KeepRows: w.cfg.KeepRows, Log: w.log,
	})
}

// connectTimeout is the time limit of an attempt to open a session for a queue.
const connectTimeout = 5 * time.Second

// pauseUntil waits for aliveInterval. It returns earlier if the session is lost, or if a request finds that the server was
// restarted. It returns false if ctx has ended.
func (w *Worker) pauseUntil(ctx context.Context, lost <-chan struct{}) bool {
	timer := time.NewTimer(host.AlignedDelay(aliveInterval))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-lost:
	case <-w.restarted:
	}
	return true
}

// sessionOptions returns the options with which the worker opens sessions in a run of the server.
func (w *Worker) sessionOptions(c *cluster.Cluster) cluster.ConnOptions {
	o := cluster.ConnOptions{
		ConnString: w.cfg.ConnString, Cluster: c, Named: w.cfg.DataDir != "", Foreign: w.cfg.Foreign,
	}
	if w.cfg.Fallback != "" {
		o.Fallback = &cluster.Fallback{ConnString: w.cfg.Fallback, Check: c.Verify}
	}
	return o
}

// report returns a function that logs changes of the connection. If the same failure occurs several times in a row, the function
// logs only the first.
func (w *Worker) report() func(cluster.ConnState) {
	told := ""
	return func(s cluster.ConnState) {
		if !s.Connected {
			w.noSession.begin()
		}
		switch {
		case s.Fallback:
			told = ""
			w.noSession.end()
			w.log.Warn().Err(s.Err).Msg("connected by the fallback connection until a connection slot is free; queues wait")
		case s.Connected:
			told = ""
			w.noSession.end()
			w.log.Info().Int("server_version", s.Version).Msg("connected")
		case s.Err != nil && told != s.Err.Error():
			told = s.Err.Error()
			w.log.Warn().Err(s.Err).Msg("not connected; superusers are answered all the same")
		}
	}
}

// Query implements authz.Querier. It runs f with the worker's session in the running server. If the worker is about to open this
// session, Query waits for it; see lookPatience and cluster.Conn.Query. If there is no session, the error wraps
// cluster.ErrNoServer.
func (w *Worker) Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	late := time.NewTimer(lookPatience)
	defer late.Stop()
	for {
		l := w.link.Load()
		switch {
		case l.conn != nil && l.run.Same(w.server()):
			return l.conn.Query(ctx, f)
		case l.failure != nil:
			return fmt.Errorf("%w: %w", cluster.ErrNoServer, l.failure)
		}
		select {
		case <-l.over:
		case <-late.C:
			return fmt.Errorf("%w: %w", cluster.ErrNoServer, errUnnoticed)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", cluster.ErrNoServer, ctx.Err())
		}
	}
}

// identifier returns a function that runs IDENTIFY_SYSTEM on the fallback connection; nil: no such connection is configured.
func (w *Worker) identifier() func(context.Context) (cluster.System, error) {
	if w.cfg.Fallback == "" {
		return nil
	}
	return func(ctx context.Context) (cluster.System, error) {
		l := w.link.Load()
		if l.conn == nil || !l.run.Same(w.server()) {
			return cluster.System{}, cluster.ErrNoServer
		}
		return l.conn.Identify(ctx)
	}
}

// errStopping means that the server shuts down and waits until its clients disconnect. So the worker has no session, and
// cannot check ordinary roles. It still answers superusers.
var errStopping = errors.New("the server is shutting down")

// errOpening means that postmaster.pid does not name the server's sockets yet. No client can have connected yet.
var errOpening = errors.New("the server is opening its sockets")

var errUnnoticed = errors.New("the server was started, and its worker has not noticed it yet")
