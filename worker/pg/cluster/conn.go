package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// ConnOptions configures a Conn. The zero value connects as libpq does without arguments.
type ConnOptions struct {
	// ConnString is a libpq connection string (keyword/value or URI). Missing settings come from a service file, the
	// PG* environment and the defaults. The default database is postgres.
	ConnString string
	// Cluster, if not nil, is the source of host and port if no other source has them.
	Cluster *Cluster
	// Named means that the user has named the server by its data directory. Host and port in PGHOST and PGPORT, and in
	// the service that PGSERVICE names, are then ignored.
	Named bool
	// Foreign means that the server may belong to any user of the host. The server gets no password in clear text or as
	// MD5, unless require_auth names that method.
	Foreign bool
	// Check, if not nil, is called in each new session before the session is used. If it returns an error, the
	// session is closed, as after a failure to connect. Cluster.Verify is a suitable function.
	Check func(context.Context, *pgx.Conn) error
	// Fallback, if not nil, configures the connection that is used while the server has no slot for an ordinary
	// session.
	Fallback *Fallback
	// OnChange, if not nil, is called when the state of the connection changes and after every failed attempt. Run
	// makes one call at a time, and waits for its return.
	OnChange func(ConnState)

	// The timeouts detect a server that has died silently. They are long, because a server with a thousand active
	// sessions responds late. If the worker closed its session for that reason, it could hardly open another one.
	ConnectTimeout   time.Duration // limit of an attempt to connect (with Check), a ping, a cancel request; default 30 s
	StatementTimeout time.Duration // limit of a statement on the server; default 30 s
	PingInterval     time.Duration // interval of pings to an idle session; default 15 s
	MinBackoff       time.Duration // pause after the first failed attempt; default 100 ms
	MaxBackoff       time.Duration // longest pause; default 10 s
}

func (o *ConnOptions) origin() origin {
	return origin{text: o.ConnString, cluster: o.Cluster, named: o.Named, foreign: o.Foreign}
}

// ConnState is the argument of OnChange.
type ConnState struct {
	Connected bool
	Fallback  bool          // the session is the connection of ConnOptions.Fallback
	Version   int           // major version of the server; 0 when not connected
	Err       error         // why there is no ordinary session; nil: there is one
	Retry     time.Duration // if not connected, the pause until the next attempt
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

// Conn is the worker's main session in the server. Run keeps the session open: it detects at once that the server has closed
// the connection, and within PingInterval that the server does not respond. Then Run reconnects. While the server has no slot
// for an ordinary session, Conn uses the connection of ConnOptions.Fallback, if it is set.
type Conn struct {
	options  ConnOptions
	config   *pgx.ConnConfig
	notes    []string
	standing atomic.Pointer[standing]
	kick     chan struct{}
}

// NewConn parses the connection string and reads the files that it refers to (service, passwords, certificates). It
// does not connect. Run does.
func NewConn(options ConnOptions) (*Conn, error) {
	options.setDefaults()
	config, notes, err := options.configure()
	if err != nil {
		return nil, err
	}
	if options.Fallback != nil {
		_, more, err := options.configureFallback()
		if err != nil {
			return nil, fmt.Errorf("fallback connection: %w", err)
		}
		notes = slices.Compact(append(notes, more...))
	}
	c := &Conn{options: options, config: config, notes: notes, kick: make(chan struct{}, 1)}
	c.stand(awaiting(errNotYet))
	return c, nil
}

// configure returns the configuration of an ordinary session, and warnings (see Notes). It reads the files to which the
// connection string refers.
func (o *ConnOptions) configure() (*pgx.ConnConfig, []string, error) {
	config, notes, err := parseConnString(o.origin())
	if err != nil {
		return nil, nil, err
	}
	o.supervise(config)
	return config, notes, nil
}

// supervise sets what the main session and the fallback connection have in common: the statement timeout, the memory for the
// lists of sessions with their query texts, and the cancel request when a context ends.
func (o *ConnOptions) supervise(config *pgx.ConnConfig) {
	config.RuntimeParams["statement_timeout"] = strconv.FormatInt(o.StatementTimeout.Milliseconds(), 10)
	// With less memory, the server would write temporary files every two seconds if it has thousands of sessions.
	config.RuntimeParams["work_mem"] = "64MB"
	// When a context ends, the statement is cancelled. pgx's default is to close the session. One caller that cancels
	// often would then make all others wait for new sessions.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: o.ConnectTimeout}
	}
}

// Notes returns warnings about the connection settings, such as a password file that others can read.
func (c *Conn) Notes() []string { return c.notes }

// Query calls f with the session. No other caller uses the session meanwhile. The context of f ends with ctx, and at
// the latest after twice the statement timeout. Query waits up to two seconds for the first session, and for a new one
// after the server has ended a session. After a failed attempt to connect, Query returns ErrNoServer with the cause at
// once, until an attempt succeeds. If the session breaks in f, Query calls f again with the next session. So f must
// only read. While the fallback connection is in use, f must not prepare statements or LISTEN; see Ordinary.
func (c *Conn) Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return c.repeat(ctx, f, false)
}

// repeat does the work of Query. ordinary means that f needs an ordinary session, not the fallback connection.
func (c *Conn) repeat(ctx context.Context, f func(context.Context, *pgx.Conn) error, ordinary bool) error {
	broken, err := c.query(ctx, f, ordinary)
	if broken {
		_, err = c.query(ctx, f, ordinary)
	}
	return err
}

// query calls f once. broken means that the session ended before the context of f: the caller may try again.
func (c *Conn) query(ctx context.Context, f func(context.Context, *pgx.Conn) error, ordinary bool) (broken bool, err error) {
	s, err := c.acquire(ctx, ordinary)
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

// Connected reports whether there is a session. version is the major version of its server; 0: there is no session.
func (c *Conn) Connected() (version int, ok bool) {
	s := c.standing.Load().session
	if s == nil {
		return 0, false
	}
	return s.version, true
}

// Retry ends the pause before the next attempt to connect. Callers use it when they know that the server is back.
func (c *Conn) Retry() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// jitter returns a random duration from pause/2 to pause, so that the workers of many clusters do not connect at the
// same time.
func jitter(pause time.Duration) time.Duration {
	half := pause / 2
	return half + rand.N(half+1) //nolint:gosec // predictability is harmless
}
