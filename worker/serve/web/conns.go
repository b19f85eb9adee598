package web

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// conns limits the number of connections of a listener. It counts only connections whose request is not being answered: silent
// connections, unfinished TLS handshakes, requests that arrive slowly, idle connections. Such connections cost a client
// nothing. (Limits.Requests limits the other connections.) A source (see the type source) can have a part of the counted
// connections. A connection has some time for its request. After this time, the listener may close it to make room for a new
// connection of the same source.
//
// If the limit of all connections is reached, a connection of the source with the most connections is closed in favor
// of a source with fewer.
type conns struct {
	net.Listener

	most    int           // largest number of counted connections
	each    int           // largest number of counted connections of one source
	least   time.Duration // time for the request, in which a connection is not closed in favor of another
	source  func(net.Conn) source
	refused func() // called for each connection that is closed for lack of room
	now     func() time.Time

	mu      sync.Mutex
	waiting int
	sources map[source]*places
}

// places are the counted connections of one source.
type places struct {
	pending list.List // connections that wait for their request; the time for the request ends first for the first one
	idle    list.List // connections whose request was answered; the first one has been idle for the longest time
}

func (p *places) count() int { return p.pending.Len() + p.idle.Len() }

// conn is a connection that conns has accepted. The mutex of conns guards its fields.
type conn struct {
	net.Conn

	of     *conns
	source source
	until  time.Time     // end of the time for its request, while it is pending
	list   *list.List    // pending or idle; nil: not counted
	place  *list.Element // in list
	busy   bool          // its request is being answered
	closed bool
}

// newConns returns a listener that limits the connections of l. All limits must be above zero. refused may be nil.
func newConns(l net.Listener, limits Limits, refused func()) *conns {
	if refused == nil {
		refused = func() {}
	}
	return &conns{
		Listener: l, most: limits.Connections, each: max(limits.Connections/sharesOfSources, 1), least: limits.First,
		source: sourceOf, refused: refused, now: time.Now, sources: make(map[source]*places),
	}
}

// sharesOfSources is the part of the connections, requests or streams that one source can have: 2 means a half.
const sharesOfSources = 2

// Accept returns the next connection for which there is room.
func (c *conns) Accept() (net.Conn, error) {
	for {
		accepted, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		n := &conn{Conn: accepted, of: c, source: c.source(accepted)}
		victim, ok := c.admit(n)
		if victim != nil {
			_ = victim.Conn.Close()
			c.refused()
		}
		if ok {
			return n, nil
		}
		_ = accepted.Close()
		c.refused()
	}
}

// admit counts a new connection if there is room for it. If another connection must be closed to make room, admit returns it as
// victim. ok is false if the new connection must be closed.
func (c *conns) admit(n *conn) (victim *conn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	own, others := 0, c.sources[n.source]
	if others != nil {
		own = others.count()
	}
	switch {
	case own >= c.each:
		victim = others.overdue(now)
	case c.waiting >= c.most:
		victim = c.victim(own, now)
	default:
		c.wait(n, now)
		return nil, true
	}
	if victim == nil {
		return nil, false
	}
	c.remove(victim)
	c.wait(n, now)
	return victim, true
}

// victim returns the connection to close in favor of a new connection; nil: none. The parameter own is the number of
// connections that the source of the new connection has already.
func (c *conns) victim(own int, now time.Time) *conn {
	var largest *places
	var oldest *conn
	for _, p := range c.sources {
		if largest == nil || p.count() > largest.count() {
			largest = p
		}
		if n := p.overdue(now); n != nil && (oldest == nil || n.until.Before(oldest.until)) {
			oldest = n
		}
	}
	if largest != nil && largest.count() > own+1 {
		if n := largest.overdue(now); n != nil {
			return n
		}
		return first(&largest.pending) // all its connections wait for their request
	}
	return oldest
}

// overdue returns a connection whose time for the request has ended. If there is none, it returns the connection that has been
// idle for longest; nil: no connection is idle.
func (p *places) overdue(now time.Time) *conn {
	if n := first(&p.pending); n != nil && !now.Before(n.until) {
		return n
	}
	return first(&p.idle)
}

func first(l *list.List) *conn {
	if l.Len() == 0 {
		return nil
	}
	n, _ := l.Front().Value.(*conn)
	return n
}

// wait counts a connection as pending. Its time for a request begins now.
func (c *conns) wait(n *conn, now time.Time) {
	n.until = now.Add(c.least)
	c.put(n, func(p *places) *list.List { return &p.pending })
}

// put counts a connection in a list of its source.
func (c *conns) put(n *conn, where func(*places) *list.List) {
	c.remove(n)
	p := c.sources[n.source]
	if p == nil {
		p = &places{}
		c.sources[n.source] = p
	}
	n.list = where(p)
	n.place = n.list.PushBack(n)
	c.waiting++
}

// remove stops counting a connection.
func (c *conns) remove(n *conn) {
	if n.list == nil {
		return
	}
	n.list.Remove(n.place)
	n.list, n.place = nil, nil
	c.waiting--
	if p := c.sources[n.source]; p.count() == 0 {
		delete(c.sources, n.source)
	}
}

// Close closes the connection.
func (n *conn) Close() error {
	n.of.mu.Lock()
	n.closed = true
	n.of.remove(n)
	n.of.mu.Unlock()
	return n.Conn.Close()
}

// change calls f if the connection is open, and is either counted or busy.
func (n *conn) change(f func(now time.Time)) {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if !n.closed && (n.list != nil || n.busy) {
		f(n.of.now())
	}
}

// arrived notes that the connection has sent a request.
func (n *conn) arrived() {
	n.change(func(now time.Time) { n.of.wait(n, now) })
}

// work notes that the request is being answered from now on. The connection is not counted until rest.
func (n *conn) work() {
	n.change(func(time.Time) { n.busy = true; n.of.remove(n) })
}

// rest notes that the handler of the request has ended, and counts the connection again. Parts of the answer may not be sent
// yet.
func (n *conn) rest() {
	n.change(func(now time.Time) { n.busy = false; n.of.wait(n, now) })
}

// state notes that a connection has become idle, so that it can be closed at once in favor of a new one.
func state(c net.Conn, s http.ConnState) {
	if n := counted(c); n != nil && s == http.StateIdle {
		n.change(func(time.Time) { n.of.put(n, func(p *places) *list.List { return &p.idle }) })
	}
}

// counted returns c as a connection of conns, also if c is TLS on such a connection; nil: conns did not accept it.
func counted(c net.Conn) *conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	n, _ := c.(*conn)
	return n
}

// from returns the source of the connection. The source of a nil connection is not known.
func (n *conn) from() source {
	if n == nil {
		return source{}
	}
	return n.source
}

type connKey struct{}

// connContext adds the connection to the context of its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, counted(c))
}

// connOf returns the connection of a request; nil if the listener does not count it.
func connOf(ctx context.Context) *conn {
	n, _ := ctx.Value(connKey{}).(*conn)
	return n
}
