package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// The supervisor opens the TCP address of a slot (see Config.Address) before the first worker of this slot starts, and
// closes it only when the supervisor ends. Workers inherit the socket. So while a worker ends or starts, no other program
// can take the address and receive the tokens that clients send. While a slot has no worker, the supervisor answers with
// status 503.

const (
	// busyAnswer is the answer to clients while a slot has no worker.
	busyAnswer = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 5\r\n" +
		"Connection: close\r\nContent-Length: 39\r\n\r\nno worker serves this port; retry later"
	// answerTime is the timeout of one answer, maxAnswers is the largest number of answers at a time, and acceptPause is the
	// pause between two answers.
	answerTime  = 2 * time.Second
	maxAnswers  = 16
	acceptPause = 10 * time.Millisecond
	// maxRequest is the number of bytes that are read of a request. If a client sends more, the kernel may reset its
	// connection.
	maxRequest = 16 << 10
	// The pause between attempts to open an address that is in use grows from minRetryPort to maxRetryPort.
	minRetryPort = time.Second
	maxRetryPort = 10 * time.Second
)

// port is the address of a slot.
type port struct {
	listener *net.TCPListener // nil: the address could not be opened
	stop     func()           // ends the answers of the supervisor; nil: a worker answers
	next     time.Time        // time of the next attempt to open the address
	pause    time.Duration
	failure  string // the last logged error
}

// ports has the addresses of all slots that were used. Only the goroutine of Run calls the methods.
type ports struct {
	log     zerolog.Logger
	address func(slot int) string // nil: workers have no addresses
	open    map[int]*port
}

func newPorts(cfg Config) *ports {
	return &ports{log: cfg.Log, address: cfg.Address, open: map[int]*port{}}
}

// give returns the socket of a slot for a worker that starts; nil: no socket. The caller must close the socket.
func (p *ports) give(slot int) *os.File {
	if p.address == nil || !p.listen(slot, time.Now()) {
		return nil
	}
	held := p.open[slot]
	held.endAnswers()
	file, err := held.listener.File()
	if err != nil {
		p.log.Error().Err(err).Str("address", p.address(slot)).Msg("the worker gets no listener")
		return nil
	}
	return file
}

// listen opens the address of a slot, unless it is open. It reports whether the address is open at the end of the call.
// After a failure, it tries again only after a pause.
func (p *ports) listen(slot int, now time.Time) bool {
	held := p.open[slot]
	if held == nil {
		held = &port{pause: minRetryPort}
		p.open[slot] = held
	}
	if held.listener != nil {
		return true
	}
	if now.Before(held.next) {
		return false
	}
	address := p.address(slot)
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", address)
	listener, ok := l.(*net.TCPListener)
	if err == nil && !ok {
		err = fmt.Errorf("%s: not a TCP socket", address)
	}
	if err != nil {
		held.next, held.pause = now.Add(held.pause), min(2*held.pause, maxRetryPort)
		if held.failure != err.Error() {
			held.failure = err.Error()
			p.log.Error().Err(err).Str("address", address).Int("slot", slot).
				Msg("cannot listen, trying again every 10 seconds; requests from SQL are answered")
		}
		return false
	}
	held.listener, held.failure = listener, ""
	return true
}

// answer starts a goroutine that answers the clients of a slot whose worker has ended; see endAnswers.
func (p *ports) answer(slot int) {
	held := p.open[slot]
	if held == nil || held.listener == nil || held.stop != nil {
		return
	}
	var group sync.WaitGroup
	listener := held.listener
	// The supervisor and the worker share the mode of the socket. If the worker has made it blocking, accept(2) ignores
	// the deadline.
	raw, err := listener.SyscallConn()
	if err == nil {
		var failure error
		err = errors.Join(raw.Control(func(fd uintptr) { failure = unix.SetNonblock(int(fd), true) }), failure)
	}
	if err = errors.Join(err, listener.SetDeadline(time.Time{})); err != nil {
		p.log.Error().Err(err).Str("address", p.address(slot)).Msg("clients of a port without a worker get no answer")
		return
	}
	group.Go(func() { refuseClients(listener) })
	held.stop = func() {
		_ = listener.SetDeadline(time.Unix(1, 0))
		group.Wait()
	}
}

// endAnswers ends the answers of the supervisor. After that, a worker accepts the clients.
func (p *port) endAnswers() {
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

// close closes all addresses.
func (p *ports) close() {
	for _, held := range p.open {
		if held.listener != nil {
			held.endAnswers()
			_ = held.listener.Close()
		}
	}
}

// refuseClients answers the clients of a listener until its deadline. It answers at most maxAnswers clients at a time,
// closes the other connections, and pauses between two clients. So its cost does not grow with the number of clients.
func refuseClients(listener *net.TCPListener) {
	slots := make(chan struct{}, maxAnswers)
	for {
		conn, err := listener.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			select {
			case slots <- struct{}{}:
				go func() {
					defer func() { <-slots }()
					refuseClient(conn)
				}()
			default:
				_ = conn.Close()
			}
		}
		time.Sleep(acceptPause)
	}
}

// refuseClient answers one client.
func refuseClient(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	request := make([]byte, maxRequest)
	if _, err := conn.Read(request); err != nil {
		return
	}
	if _, err := conn.Write([]byte(busyAnswer)); err != nil {
		return
	}
	// If the connection is closed while it has unread data, the kernel resets it, and the client may lose the answer.
	if tcp, ok := conn.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		_, _ = conn.Read(request)
	}
}

// openPorts tries again to open the addresses of slots whose worker runs without a listener because the address was in use.
// If that succeeds, it restarts the worker, which then gets the listener.
func (s *supervisor) openPorts(now time.Time) {
	if s.ports.address == nil {
		return
	}
	for _, c := range s.clusters {
		if held := s.ports.open[c.slot]; c.phase == running && held != nil && held.listener == nil &&
			s.ports.listen(c.slot, now) {
			s.Log.Info().Str("cluster", c.DataDir).Str("address", s.ports.address(c.slot)).
				Msg("the address is free now, starting the worker again with a listener")
			c.yields = true
			s.stop(c)
		}
	}
}

// mostPorts limits the number of ports in a line of sendPorts, so that the line has less than 4096 bytes (see write).
const mostPorts = 600

// sendPorts gives each worker the ports of all workers of this host with a listener, if they have changed since the worker's
// last line. A worker that has ended, and is about to be started again, keeps its place in the list.
func (s *supervisor) sendPorts() {
	if s.ports.address == nil {
		return
	}
	var list []string
	for _, c := range s.clusters {
		if held := s.ports.open[c.slot]; c.gone || c.began.IsZero() || held == nil || held.listener == nil {
			continue
		}
		if _, port, err := net.SplitHostPort(s.ports.address(c.slot)); err == nil {
			list = append(list, port)
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	line := "ports " + strings.Join(list[:min(len(list), mostPorts)], " ") + "\n"
	for _, c := range s.clusters {
		if c.phase == running && c.ports != line && c.write(line) == nil {
			c.ports = line
		}
	}
}
