package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// patience is how long a caller waits for a session that is being opened, from the time at which the attempt was due.
// An idle server opens a session in ten milliseconds, and a busy server in a second.
const patience = 2 * time.Second

var errNotYet = errors.New("not connected yet")

// standing is the state of a Conn for callers of Query: the session, or why there is none.
type standing struct {
	session *session
	reason  error
	// promising is set if the next attempt is likely to succeed, because it is the first one or the server ended the
	// last session. Callers wait for the attempt until this time. If promising is zero, they do not wait.
	promising time.Time
	over      chan struct{} // closed when another standing has replaced this one
}

// connected returns the standing with a session.
func connected(s *session) *standing { return &standing{session: s} }

// apart returns the standing without a session after a failed attempt. Callers do not wait.
func apart(reason error) *standing { return &standing{reason: reason} }

// awaiting returns the standing without a session while an attempt is likely to succeed soon.
func awaiting(reason error) *standing {
	return &standing{reason: reason, promising: time.Now().Add(patience)}
}

// stand replaces the current standing. NewConn and Run call it, never at the same time.
func (c *Conn) stand(s *standing) {
	s.over = make(chan struct{})
	if old := c.standing.Swap(s); old != nil {
		close(old.over)
	}
}

// acquire returns the session for exclusive use. If a new session is likely to come soon, it waits for it. Otherwise it
// returns ErrNoServer with the reason. If the session was in use until ctx ended, it returns the context's error. ordinary
// means that the caller cannot use the fallback connection.
func (c *Conn) acquire(ctx context.Context, ordinary bool) (*session, error) {
	for {
		s := c.standing.Load()
		var err error
		if s.session != nil {
			if ordinary && s.session.fallback {
				return nil, fmt.Errorf("%w: %w", ErrNoServer, errOrdinary)
			}
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

// change waits until another standing has replaced this one. It returns false if that does not happen until the time
// promising (for a lost session: within patience), or until ctx ends.
func (s *standing) change(ctx context.Context) bool {
	left := time.Until(s.promising)
	if s.session != nil {
		left = patience // the session is lost, and Run will soon report that
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
