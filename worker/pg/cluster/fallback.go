package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/host"
)

// sqlTooManyConnections is the SQLSTATE with which a server refuses a session because a limit of connections is reached.
const sqlTooManyConnections = "53300"

// Fallback configures a replication connection to a database. A server keeps slots for WAL senders (max_wal_senders) apart from
// those of other sessions. So a replication connection succeeds when ordinary ones are refused. The WAL sender that serves it runs
// statements by the simple query protocol, but refuses LISTEN and the extended protocol. This program never streams WAL over the
// connection, and creates no replication slot.
type Fallback struct {
	// ConnString has settings that replace those of ConnOptions.ConnString. The role needs LOGIN and REPLICATION.
	ConnString string
	// Check, if not nil, is called for each new fallback connection before it is used; see ConnOptions.Check.
	Check func(context.Context, *pgx.Conn) error
}

// System is a server's reply to the replication command IDENTIFY_SYSTEM.
type System struct {
	// ID is the system identifier, in decimal.
	ID string
	// Timeline is the current timeline. On a standby this is the timeline of replay.
	Timeline uint32
	// Position is the end of the WAL that is on disk. On a standby it is the end of the WAL that can be streamed.
	Position uint64
}

// ErrNoFallback means that there is no fallback connection.
var ErrNoFallback = errors.New("there is no fallback connection")

// errOrdinary is returned to callers that need an ordinary session.
var errOrdinary = errors.New("all connection slots are in use, and the fallback connection cannot serve this")

// NoSlot reports whether an ordinary session failed only because the server has no connection slot free for it.
func NoSlot(err error) bool {
	var refusal *pgconn.PgError
	return errors.Is(err, errReserved) || errors.As(err, &refusal) && refusal.Code == sqlTooManyConnections
}

// CheckFallback returns an error if the connection string of a fallback is invalid. text is the worker's connection
// string, whose settings the fallback overrides. The error wraps ErrConnString.
func CheckFallback(fallback, text string) error {
	s, err := overlay(fallback, text)
	if err != nil {
		return err
	}
	if err := s.replicates(); err != nil {
		return err
	}
	s.fill(environment())
	if err := s.check(); err != nil {
		return err
	}
	_, err = s.addresses()
	return err
}

// replicates removes the setting replication. It returns an error if the setting has a value other than "database".
func (s settings) replicates() error {
	if v := s["replication"]; v != "" && !strings.EqualFold(v, "database") {
		return connError("connection option replication must be database, not %q", v)
	}
	delete(s, "replication")
	return nil
}

// configureFallback returns the configuration of the fallback connection, and warnings; see configure.
func (o *ConnOptions) configureFallback() (*pgx.ConnConfig, []string, error) {
	from := o.origin()
	from.over, from.replication = o.Fallback.ConnString, true
	config, notes, err := parseConnString(from)
	if err != nil {
		return nil, nil, err
	}
	o.supervise(config)
	config.RuntimeParams["replication"] = "database"
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.StatementCacheCapacity, config.DescriptionCacheCapacity = 0, 0
	return config, notes, nil
}

// dialFallback opens the fallback connection, and checks it with Fallback.Check.
func (c *Conn) dialFallback(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.ConnectTimeout)
	defer cancel()
	config, _, err := c.options.configureFallback()
	if err != nil {
		return nil, err
	}
	conn, err := Connect(ctx, config)
	if err != nil {
		return nil, adviseMethod(config, pooled(ctx, config, err))
	}
	if check := c.options.Fallback.Check; check != nil {
		if err := check(ctx, conn); err != nil {
			hangUp(ctx, conn)
			return nil, err
		}
	}
	return conn, nil
}

// fallBack opens the fallback connection after the server has refused an ordinary session for lack of a slot. Meanwhile it
// tries again to open an ordinary session. When that succeeds, the ordinary session replaces the fallback connection, and
// fallBack returns when the ordinary session has ended. It also returns if the fallback connection fails or breaks, if the
// server refuses an ordinary session for another reason, or if ctx ends.
func (c *Conn) fallBack(ctx context.Context, refused error) (lasted time.Duration, err error) {
	conn, err := c.dialFallback(ctx)
	if err != nil {
		err = fmt.Errorf("%w; the fallback connection failed too: %w", refused, err)
		c.stand(apart(err))
		return 0, err
	}
	began := time.Now()
	s := newSession(conn)
	s.fallback = true
	c.stand(connected(s))
	c.options.OnChange(ConnState{Connected: true, Fallback: true, Version: s.version, Err: refused})
	held, release := context.WithCancel(ctx)
	defer release()
	var ordinary *pgx.Conn
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer release()
		ordinary, failed = c.awaitSlot(held)
	}()
	err = s.watch(held, c.options.PingInterval, c.options.ConnectTimeout)
	release()
	<-done
	switch {
	case ordinary != nil:
		return c.hold(ctx, newSession(ordinary), s)
	case failed != nil:
		err = failed
		c.stand(apart(err))
	default:
		c.stand(awaiting(err))
	}
	s.close(ctx)
	return time.Since(began), err
}

// awaitSlot tries to open an ordinary session until that succeeds or fails for another reason than a lack of slots. It returns
// nil and no error if ctx ends.
func (c *Conn) awaitSlot(ctx context.Context) (*pgx.Conn, error) {
	for c.sleep(ctx, jitter(c.options.MaxBackoff)) {
		conn, err := c.connect(ctx)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilnil,nilerr // see above
		case !NoSlot(err):
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // see above
}

// OrdinaryConn runs queries of a Conn in ordinary sessions only, never over the fallback connection.
type OrdinaryConn struct{ conn *Conn }

// Ordinary returns the connection for callers that cannot use the fallback connection, because they need LISTEN or
// further sessions.
func (c *Conn) Ordinary() OrdinaryConn { return OrdinaryConn{c} }

// Query is like Conn.Query, but uses only an ordinary session. While the fallback connection is in use, it returns
// ErrNoServer.
func (o OrdinaryConn) Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return o.conn.repeat(ctx, f, true)
}

// Identify runs IDENTIFY_SYSTEM over the fallback connection. If that is not in use, Identify opens it for this command. It
// returns when ctx ends, even if the server does not respond. The error is ErrNoFallback if ConnOptions has no fallback.
func (c *Conn) Identify(ctx context.Context) (System, error) {
	if c.options.Fallback == nil {
		return System{}, ErrNoFallback
	}
	if s := c.standing.Load().session; s != nil && s.fallback && s.acquire(ctx) == nil {
		return s.identify(ctx)
	}
	conn, err := c.dialFallback(ctx)
	if err != nil {
		return System{}, err
	}
	s := newSession(conn)
	defer s.close(ctx)
	<-s.turn
	return s.identify(ctx)
}

// identify runs IDENTIFY_SYSTEM, and releases the session after the reply. It returns when ctx ends, even without a
// reply.
func (s *session) identify(ctx context.Context) (System, error) {
	type reply struct {
		System

		err error
	}
	replies := make(chan reply, 1)
	go func() {
		defer s.release()
		var r reply
		r.err = host.Catch("IDENTIFY_SYSTEM", func() error {
			found, err := pglogrepl.IdentifySystem(ctx, s.conn.PgConn())
			r.System = System{ID: found.SystemID, Timeline: uint32(found.Timeline), Position: uint64(found.XLogPos)}
			return err
		})
		replies <- r
	}()
	select {
	case r := <-replies:
		return r.System, r.err
	case <-ctx.Done():
		return System{}, ctx.Err()
	}
}
