package pgcluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// ConnOptions configure a Conn. The zero value connects as libpq would without arguments.
type ConnOptions struct {
	// ConnString is a libpq connection string (keyword/value or URI); what it leaves open comes from a service file,
	// from the PG* environment and from the defaults. The database is postgres unless one is named.
	ConnString string
	// Cluster, when not nil, gives host and port where nothing else does.
	Cluster *Cluster
	// Named says that a data directory names the server: PGHOST and PGPORT, also those of PGSERVICE, then do not say
	// where it is.
	Named bool
	// Check, when not nil, is called in each new session before it is used; an error from it closes the session and is
	// treated like a failure to connect. Cluster.Verify belongs here.
	Check func(context.Context, *pgx.Conn) error
	// OnChange, when not nil, is told when the state of the connection changes, and of every failed attempt. It is
	// called by Run, one call at a time, and holds up the supervision as long as it runs.
	OnChange func(ConnState)

	// The timeouts are for a server that has died without a word. One that has a thousand sessions at work answers
	// late, and a session given up for that would be hard to get again.
	ConnectTimeout   time.Duration // an attempt, Check included; a ping; the answer to a cancel request; default 30 s
	StatementTimeout time.Duration // one statement on the server; default 30 s
	PingInterval     time.Duration // how often an idle session is tried; default 15 s
	MinBackoff       time.Duration // pause after the first failed attempt; default 100 ms
	MaxBackoff       time.Duration // longest pause; default 10 s
}

func (o *ConnOptions) origin() origin {
	return origin{text: o.ConnString, cluster: o.Cluster, named: o.Named}
}

// ConnState is what OnChange is told.
type ConnState struct {
	Connected bool
	Version   int           // major version of the server; 0 when not connected
	Err       error         // why there is no connection (any more)
	Retry     time.Duration // when not connected: pause until the next attempt
}

func (o *ConnOptions) setDefaults() {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&o.ConnectTimeout, 30 * time.Second}, {&o.StatementTimeout, 30 * time.Second}, {&o.PingInterval, 15 * time.Second},
		{&o.MinBackoff, 100 * time.Millisecond}, {&o.MaxBackoff, 10 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	if o.OnChange == nil {
		o.OnChange = func(ConnState) {}
	}
}

// Conn is the worker's own session in the server. Run keeps it: it connects, notices at once when the server hangs up
// and within PingInterval when it falls silent, and connects again.
type Conn struct {
	options  ConnOptions
	config   *pgx.ConnConfig
	notes    []string
	standing atomic.Pointer[standing]
	kick     chan struct{}
}

// NewConn parses the connection string and reads the files that it refers to (service, passwords, certificates), but
// connects to nothing; Run does.
func NewConn(options ConnOptions) (*Conn, error) {
	options.setDefaults()
	config, notes, err := parseConnString(options.origin())
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["statement_timeout"] = strconv.FormatInt(options.StatementTimeout.Milliseconds(), 10)
	// A context that ends cancels the statement. Closing the session instead, as pgx does by default, would let a
	// caller who keeps cancelling keep everybody else waiting for a new one.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: options.ConnectTimeout}
	}
	c := &Conn{options: options, config: config, notes: notes, kick: make(chan struct{}, 1)}
	c.stand(awaiting(errNotYet))
	return c, nil
}

// Notes returns warnings about the connection settings, such as a password file that others can read.
func (c *Conn) Notes() []string { return c.notes }

// Query calls f with the session, which f has for itself. The context that f is given ends with ctx, and some time
// after the statement timeout at the latest. Query waits up to two seconds for the first session, and for the next one
// when somebody has ended it; once an attempt to connect has failed, Query fails at once until one succeeds, with
// ErrNoServer and the reason. When the session breaks in f, as one does that was ended unnoticed, f is called once more
// with the next one: it must do no more than read.
func (c *Conn) Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	broken, err := c.query(ctx, f)
	if broken {
		_, err = c.query(ctx, f)
	}
	return err
}

// query calls f once. Broken says that the session had its end before f had the time that it may take.
func (c *Conn) query(ctx context.Context, f func(context.Context, *pgx.Conn) error) (broken bool, err error) {
	s, err := c.acquire(ctx)
	if err != nil {
		return false, err
	}
	defer s.release()
	ctx, cancel := context.WithTimeout(ctx, 2*c.options.StatementTimeout)
	defer cancel()
	err = f(ctx, s.conn)
	if s.conn.IsClosed() {
		if err == nil {
			err = errors.New("the session was closed")
		}
		s.lose(err)
		return ctx.Err() == nil, fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	return false, err
}

// Connected reports whether there is a session, and the major version of its server.
func (c *Conn) Connected() (version int, ok bool) {
	s := c.standing.Load().session
	if s == nil {
		return 0, false
	}
	return s.version, true
}

// Retry ends the pause before the next attempt to connect, if there is one: for a caller who knows that the server is
// back.
func (c *Conn) Retry() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// jitter spreads a pause over its upper half, so that the workers of many clusters do not connect in step.
func jitter(pause time.Duration) time.Duration {
	half := pause / 2
	return half + rand.N(half+1) //nolint:gosec // nobody gains by guessing it
}
