package web

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
)

// conns bounds the connections of a listener. When there are too many, the oldest one without a request in progress
// gives way: it is idle, or sends its request too slowly.
type conns struct {
	net.Listener

	most int

	mu   sync.Mutex
	open []*conn // oldest first
}

// conn is a connection that conns counts.
type conn struct {
	net.Conn

	of   *conns
	busy bool // a request is being answered
	once sync.Once
}

// Accept returns the next connection for which there is room.
func (c *conns) Accept() (net.Conn, error) {
	for {
		accepted, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		n := &conn{Conn: accepted, of: c}
		if c.add(n) {
			return n, nil
		}
		_ = accepted.Close()
	}
}

// add counts a connection; false if all others are busy.
func (c *conns) add(n *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.most {
		victim := -1
		for i, other := range c.open {
			if !other.busy {
				victim = i
				break
			}
		}
		if victim < 0 {
			return false
		}
		_ = c.open[victim].Conn.Close()
		c.drop(c.open[victim])
	}
	c.open = append(c.open, n)
	return true
}

func (c *conns) drop(n *conn) {
	for i, other := range c.open {
		if other == n {
			c.open = append(c.open[:i], c.open[i+1:]...)
			return
		}
	}
}

// Close closes the connection.
func (n *conn) Close() error {
	n.once.Do(func() {
		n.of.mu.Lock()
		defer n.of.mu.Unlock()
		n.of.drop(n)
	})
	return n.Conn.Close()
}

type connKey struct{}

// connContext makes the connection known to its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// working marks the connection of a request as busy until done is called.
func working(ctx context.Context) (done func()) {
	n, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return func() {}
	}
	set := func(busy bool) {
		n.of.mu.Lock()
		defer n.of.mu.Unlock()
		n.busy = busy
	}
	set(true)
	return func() { set(false) }
}
