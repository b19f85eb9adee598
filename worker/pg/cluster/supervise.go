package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// stableAfter is how long a session must last, so that the pause after it is MinBackoff again.
	stableAfter = 5 * time.Second
	// closeTimeout bounds the closing of a connection to a server that may be gone.
	closeTimeout = time.Second
)

var errStopping = errors.New("the worker is stopping")

// Run connects, and reconnects after each loss, until ctx ends. It returns the context's error. It must be called once.
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
		if errors.Is(err, ErrScarce) { // another attempt would briefly take a slot again
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

// attempt connects, and returns when the session has ended. It returns how long the session lasted, and why it ended
// or could not be opened.
func (c *Conn) attempt(ctx context.Context) (lasted time.Duration, err error) {
	conn, err := c.connect(ctx)
	if c.options.Fallback != nil && NoSlot(err) {
		return c.fallBack(ctx, err)
	}
	if err != nil {
		c.stand(apart(err))
		return 0, err
	}
	return c.hold(ctx, newSession(conn), nil)
}

// hold gives session s to the callers of Query, and returns when s has ended. It closes former, the session before s;
// nil: there is none.
func (c *Conn) hold(ctx context.Context, s, former *session) (lasted time.Duration, err error) {
	began := time.Now()
	c.stand(connected(s))
	c.options.OnChange(ConnState{Connected: true, Version: s.version})
	if former != nil {
		former.close(ctx)
	}
	err = s.watch(ctx, c.options.PingInterval, c.options.ConnectTimeout)
	c.stand(awaiting(err))
	s.close(ctx)
	return time.Since(began), err
}

func (c *Conn) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.ConnectTimeout)
	defer cancel()
	config := c.config
	if now, _, err := c.options.configure(); err == nil { // passwords and certificates may have been replaced
		config = now
	}
	conn, err := Connect(ctx, config)
	if err != nil {
		return nil, adviseMethod(config, pooled(ctx, config, err))
	}
	if c.options.Check != nil {
		if err := c.options.Check(ctx, conn); err != nil {
			hangUp(ctx, conn)
			return nil, err
		}
	}
	return conn, nil
}

// sleep waits for the pause, or until Retry is called. It returns false if ctx ends before.
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

// hangUp closes the connection, even if ctx has ended already.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the error has no effect: the connection is not used again
}
