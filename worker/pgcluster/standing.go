package pgcluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// patience is how long a caller waits for a session that is being opened, from the moment the attempt became due. A
// server at rest opens one in ten milliseconds, a crowded one in a second.
const patience = 2 * time.Second

var errNotYet = errors.New("not connected yet")

// standing is what callers go by: the session, or why there is none.
type standing struct {
	session *session
	reason  error
	// promising says that the next attempt to connect may well succeed: it is the first, or follows a session that
	// somebody ended. Callers wait for its outcome, until then; zero: they do not.
	promising time.Time
	over      chan struct{} // closed when another standing has taken this one's place
}

// connected is the standing while there is a session.
func connected(s *session) *standing { return &standing{session: s} }

// apart is the standing without a session. After a failed attempt nobody waits.
func apart(reason error) *standing { return &standing{reason: reason} }

// awaiting is the standing without a session while one may come soon.
func awaiting(reason error) *standing {
	return &standing{reason: reason, promising: time.Now().Add(patience)}
}

// stand makes s what callers go by. NewConn and Run call it, never at the same time.
func (c *Conn) stand(s *standing) {
	s.over = make(chan struct{})
	if old := c.standing.Swap(s); old != nil {
		close(old.over)
	}
}

// acquire returns the session, for the caller alone, and waits for one that is about to be there; else ErrNoServer and
// why, or the context's error when the session was in use all the time.
func (c *Conn) acquire(ctx context.Context) (*session, error) {
	for {
		s := c.standing.Load()
		var err error
		if s.session != nil {
			err = s.session.acquire(ctx)
		} else {
			err = fmt.Errorf("%w: %w", ErrNoServer, s.reason)
		}
		switch {
		case err == nil:
			return s.session, nil
		case ctx.Err() != nil, !s.change(ctx):
			return nil, err
		}
	}
}

// change waits until another standing has taken this one's place; false: that is not worth waiting for any longer.
func (s *standing) change(ctx context.Context) bool {
	left := time.Until(s.promising)
	if s.session != nil {
		left = patience // it is lost, and Run about to say so
	}
	if left <= 0 {
		return false
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-s.over:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
