package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host"
)

var errHungUp = errors.New("the server closed the connection")

// session is one pgx connection from its start to its end.
type session struct {
	conn *pgx.Conn
	// fallback is set for the fallback connection (see Fallback), which refuses LISTEN and prepared statements.
	fallback bool
	version  int
	turn     chan struct{} // has one token; the caller that takes the token may use conn
	lost     chan struct{} // closed when the session has ended
	once     sync.Once
	err      error // why the session ended; valid once lost is closed
}

func newSession(conn *pgx.Conn) *session {
	s := &session{
		conn: conn, version: majorVersion(conn.PgConn()), turn: make(chan struct{}, 1), lost: make(chan struct{}),
	}
	s.turn <- struct{}{}
	return s
}

// acquire waits until no other caller uses the connection. After success the caller must call release.
func (s *session) acquire(ctx context.Context) error {
	select {
	case <-s.lost:
		return fmt.Errorf("%w: %w", ErrNoServer, s.err)
	default:
	}
	select {
	case <-s.turn:
		return nil
	case <-s.lost:
		return fmt.Errorf("%w: %w", ErrNoServer, s.err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) release() { s.turn <- struct{}{} }

// lose marks the session as ended, for the reason err. Later calls change nothing.
func (s *session) lose(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.lost)
	})
}

// watch returns when the session is lost or ctx ends, with the reason. It pings the server at each interval, and
// patience is the timeout of a ping.
func (s *session) watch(ctx context.Context, interval, patience time.Duration) error {
	stop := s.watchHangUp()
	defer stop()
	timer := time.NewTimer(host.AlignedDelay(interval))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			s.lose(errStopping)
			return ctx.Err()
		case <-s.lost:
			return s.err
		case <-timer.C:
			s.ping(ctx, patience)
			timer.Reset(host.AlignedDelay(interval))
		}
	}
}

// ping checks whether the server still responds. It skips a session in use, because its user notices an error.
func (s *session) ping(ctx context.Context, patience time.Duration) {
	select {
	case <-s.turn:
		defer s.release()
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.conn.Ping(ctx); err != nil {
		s.lose(fmt.Errorf("the server does not answer: %w", err))
	}
}

// watchHangUp ends the session as soon as the server closes its side, not only at the next use. Otherwise, after a
// restart, the first caller would get the error that there is no server. A duplicate of the descriptor waits in the
// Go runtime's poller, beside pgx's reads, and consumes no data.
func (s *session) watchHangUp() (stop func()) {
	file, err := duplicate(s.conn.PgConn().Conn())
	if err != nil {
		return func() {} // then the pings detect the end
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if hungUp(file) {
			s.lose(errHungUp)
		}
	}()
	return func() {
		_ = file.Close() // ends the wait
		<-done
	}
}

func duplicate(conn net.Conn) (*os.File, error) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	socket, ok := conn.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("a %T has no descriptor", conn)
	}
	return socket.File()
}

// hungUp waits until the peer has closed the connection. It returns false if file is closed first. The server's last
// messages may be unread, so hungUp checks the socket's state and does not read.
func hungUp(file *os.File) bool {
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	err = raw.Read(func(fd uintptr) bool {
		state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(state, 0)
		closed = err == nil && n > 0
		return closed
	})
	return err == nil && closed
}

// close ends the session when its current user has finished, or after a timeout.
func (s *session) close(ctx context.Context) {
	s.lose(errStopping)
	select {
	case <-s.turn:
		hangUp(ctx, s.conn)
	case <-time.After(2 * closeTimeout):
		_ = s.conn.PgConn().Conn().Close()
	}
}
