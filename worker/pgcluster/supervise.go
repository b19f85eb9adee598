package pgcluster

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// stableAfter is how long a session must have lasted for the next attempt to come soon.
	stableAfter = 5 * time.Second
	// closeTimeout bounds the farewell to a server that may not be there any more.
	closeTimeout = time.Second
)

var errStopping = errors.New("the worker is stopping")

// Run keeps the connection until ctx ends, and returns the context's error then. It must be called once.
func (c *Conn) Run(ctx context.Context) error {
	defer func() { c.stand(apart(errStopping)) }()
	pause := c.options.MinBackoff
	for {
		lasted, err := c.attempt(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if lasted > stableAfter {
			pause = c.options.MinBackoff
		}
		if errors.Is(err, ErrScarce) { // another attempt takes a slot again, for a moment
			pause = c.options.MaxBackoff
		}
		wait := jitter(pause)
		c.options.OnChange(ConnState{Err: err, Retry: wait})
		if !c.sleep(ctx, wait) {
			return ctx.Err()
		}
		pause = min(2*pause, c.options.MaxBackoff)
	}
}

// attempt connects and returns when the session has ended: how long it lasted, and why it ended or never came about.
func (c *Conn) attempt(ctx context.Context) (lasted time.Duration, err error) {
	conn, err := c.connect(ctx)
	if err != nil {
		c.stand(apart(err))
		return 0, err
	}
	began := time.Now()
	s := newSession(conn)
	c.stand(connected(s))
	c.options.OnChange(ConnState{Connected: true, Version: s.version})
	err = s.watch(ctx, c.options.PingInterval, c.options.ConnectTimeout)
	c.stand(awaiting(err))
	s.close(ctx)
	return time.Since(began), err
}

func (c *Conn) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.ConnectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, c.config)
	if err != nil {
		return nil, pooled(ctx, c.config, err)
	}
	if c.options.Check != nil {
		if err := c.options.Check(ctx, conn); err != nil {
			hangUp(ctx, conn)
			return nil, err
		}
	}
	return conn, nil
}

// sleep waits, unless Retry is called; it returns false when ctx ends.
func (c *Conn) sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-c.kick:
	}
	return true
}

// hangUp says goodbye, also when ctx has ended already.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // there is nothing left to lose
}
