package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
)

// Config configures a Server. Address must be set.
type Config struct {
	Address Address
	// Inherited is a socket from the parent process that already listens on the address; nil: the server opens the
	// address.
	Inherited *os.File
	// TokenFile is a file with one token in each line. A request must have one of these tokens. Empty: requests need no
	// token, which Check allows only if other hosts cannot reach the address.
	TokenFile string
	// CertFile and KeyFile are the certificate and its key for TLS; empty: no TLS.
	CertFile, KeyFile string
	// Files has the contents of files that this process read while it was root (see ReadAsRoot); nil: none.
	Files *Files
	// Version is the version of pg_stat_backtrace, for the index page.
	Version string
	// Metrics answers requests for /metrics; nil: this page does not exist.
	Metrics http.Handler
	// Collect makes profiles; nil: requests for profiles are refused.
	Collect Collect
	// Render prints profiles in the formats html, text, json, folded and speedscope; nil: only pprof's format is offered.
	Render Render
	// Screen is the page of the incident screen; nil: the page does not exist.
	Screen *Screen
	// Ports returns the TCP ports, at the host of Address, of the workers that have the same token file and certificate, with the
	// port of this one. The screen can show their servers too. nil: there are no other workers.
	Ports func() []int
	// Hosts are further host names with which clients may address this listener in requests, such as a DNS name or the name of a
	// proxy.
	Hosts []string
	// Health returns the state of the worker; nil: always healthy.
	Health func() Health
	// Log gets the opened address, errors of the listener and of changed files, once for each different error, and the
	// actions of the screen. The zero value discards them.
	Log zerolog.Logger
	// OnAnswer is called with the status of each answer; nil: nothing is called.
	OnAnswer func(status int)
	// OnRefused is called for each connection that is closed for lack of room; nil: nothing is called.
	OnRefused func()
	// Limits limit the resources that clients can use; the zero value means the defaults.
	Limits Limits
}

// Screen has the handlers of the incident screen.
type Screen struct {
	// Files answers below /screen/ without a token.
	Files http.Handler
	// View answers /screen/data without names and texts. Operator answers it with names and texts, for operator tokens.
	View, Operator http.Handler
	// ViewEvents and OperatorEvents answer /screen/events with a stream that ends with the context of the request; nil: there
	// are no streams.
	ViewEvents, OperatorEvents http.Handler
	// Actions are the actions that operators can start; nil: none.
	Actions *Actions
}

// Health is the state of the worker.
type Health struct {
	// Failure says why the worker does not serve; empty: it serves.
	Failure string
	// Missing names what does not work; the worker serves the rest.
	Missing []string
}

// Limits limit the resources that clients can use. A field that is 0 has its default.
type Limits struct {
	// Connections is the number of open connections, without those whose requests are being answered. One source (see the
	// type source) may have half of them. The default is 2048, but at most a quarter of the files that this process may open.
	Connections int
	// First is the time that a new connection has for its first request; default 500 ms. After that, the listener may close it to
	// make room for another connection.
	First time.Duration
	// Requests is the number of requests that are answered at a time; default 16. More requests wait. One source may have half of
	// these places. The same holds for ProfileClients, Screens and Forwards.
	Requests int
	// ProfileClients is the number of clients that wait for a profile; default 16.
	ProfileClients int
	// Screens is the number of requests for data of the screen that are answered at a time; default 8. Requests does
	// not include them.
	Screens int
	// Forwards is the number of requests for data of other workers that wait for their answers at a time; default 16. Screens
	// does not include them: two workers that ask each other must not wait for each other's places.
	Forwards int
	// Streams is the number of streams of the screen; default 16. One source may have half of them.
	Streams int
	// Wait is the longest time for which a request waits for its turn if too many are being answered; default 10 s.
	Wait time.Duration
	// Header is the time limit for a client to send the header of a request; default 5 s.
	Header time.Duration
	// Idle is the time after which a connection without a request is closed; default 60 s.
	Idle time.Duration
	// Write is the time limit for sending an answer; default 30 s.
	Write time.Duration
	// Retry is the pause before the listener is opened again, and between two checks of the path of a Unix socket; default
	// 10 s.
	Retry time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, defaultConnections())
	l.First = cmp.Or(l.First, 500*time.Millisecond)
	l.Requests = cmp.Or(l.Requests, 16)
	l.ProfileClients = cmp.Or(l.ProfileClients, 16)
	l.Screens = cmp.Or(l.Screens, 8)
	l.Forwards = cmp.Or(l.Forwards, 16)
	l.Streams = cmp.Or(l.Streams, 16)
	l.Wait = cmp.Or(l.Wait, 10*time.Second)
	l.Header = cmp.Or(l.Header, 5*time.Second)
	l.Idle = cmp.Or(l.Idle, time.Minute)
	l.Write = cmp.Or(l.Write, 30*time.Second)
	l.Retry = cmp.Or(l.Retry, 10*time.Second)
	return l
}

// defaultConnections returns the default of Limits.Connections. It is at most a quarter of the files that this process may
// open, so that the worker can use the others.
func defaultConnections() int {
	const most, least, share = 2048, 16, 4
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return least
	}
	return int(max(least, min(files.Cur/share, most)))
}

// maxHeader is the largest header of a request, in bytes.
const maxHeader = 16 << 10

// lastAnswers is the time that requests in progress have after the end of Run's context.
const lastAnswers = time.Second

// ErrNeedsToken means that other hosts reach the address and no token protects it.
var ErrNeedsToken = errors.New("an address that other hosts reach needs a token")

// Check returns an error if a Server with this configuration cannot work: ErrNeedsToken, or the error of reading a
// file. It reads all files of the configuration.
func (c *Config) Check() error {
	if !c.Address.Loopback() && c.TokenFile == "" {
		return ErrNeedsToken
	}
	if t := c.tokens(); t != nil {
		if _, err := t.current(); err != nil {
			return err
		}
	}
	if r := c.certificates(); r != nil {
		_, err := r.get(nil)
		return err
	}
	return nil
}

// InClearText reports whether tokens and profiles cross a network without TLS.
func (c *Config) InClearText() bool { return !c.Address.Loopback() && c.CertFile == "" }

// Server is an HTTP server; Run runs it.
type Server struct {
	cfg      Config
	limits   Limits
	tokens   *tokens
	certs    *certificates
	flights  *flights
	requests *limits.Gate
	profiles *limits.Gate
	screens  *limits.Gate
	forwards *limits.Gate
	streams  *streams
	others   *others
	actions  *actions
}

// lastContent is the log message for a token or certificate file that has changed and cannot be used.
const lastContent = "a changed file of the listener cannot be used, its last content stays in use; " +
	"if only root can read it, restart the worker"

// New makes a server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, limits: cfg.Limits.withDefaults(), flights: &flights{collect: cfg.Collect, render: cfg.Render}}
	if s.tokens = cfg.tokens(); s.tokens != nil {
		s.tokens.log = cfg.Log
	}
	if s.certs = cfg.certificates(); s.certs != nil {
		s.certs.log = cfg.Log
	}
	s.requests = newTurns(s.limits.Requests)
	s.screens = newTurns(s.limits.Screens)
	s.forwards = newTurns(s.limits.Forwards)
	s.streams = newStreams(s.limits.Streams)
	s.others = newOthers(&s.cfg, s.certs)
	s.actions = newActions()
	s.profiles = newTurns(s.limits.ProfileClients)
	return s
}

// Run serves until ctx ends. While the address cannot be opened, it tries again after each Limits.Retry.
func (s *Server) Run(ctx context.Context) {
	reported := ""
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != reported {
			reported = err.Error()
			s.cfg.Log.Error().Err(err).Stringer("address", s.cfg.Address).Dur("retry_ms", s.limits.Retry).
				Msg("cannot listen, trying again; requests from SQL are answered")
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.limits.Retry):
		}
	}
}

// listen opens the address, or takes the socket of the parent process.
func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	if s.cfg.Inherited != nil {
		return net.FileListener(s.cfg.Inherited)
	}
	return s.cfg.Address.listen(ctx, s.tokens != nil)
}

// serve opens the address and serves until ctx ends, the listener fails, or the path of its Unix socket is gone.
func (s *Server) serve(ctx context.Context) error {
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	socket := openedSocket(listener)
	s.cfg.Log.Info().Str("address", address(listener)).Msg("listening")
	var accepting net.Listener = newConns(listener, s.limits, s.cfg.OnRefused)
	if s.certs != nil {
		accepting = tls.NewListener(accepting, s.certs.config())
	}
	// ReadTimeout limits the time for the body of a refused request, of which net/http reads up to 256 kB. For other requests,
	// the handler removes this deadline. A client has at least limits.Header for this body, because its header took at most
	// limits.Header.
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: s.limits.Header, ReadTimeout: 2 * s.limits.Header,
		IdleTimeout: s.limits.Idle, WriteTimeout: s.limits.Wait + s.limits.Write, MaxHeaderBytes: maxHeader,
		ConnContext: connContext, ConnState: state, ErrorLog: log.New(io.Discard, "", 0),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(accepting) }()
	check := time.NewTimer(host.AlignedDelay(s.limits.Retry))
	defer check.Stop()
	for ctx.Err() == nil {
		select {
		case err := <-failed:
			return err
		case <-check.C:
			if socket.lost() {
				// Requests in progress continue.
				_ = listener.Close()
				<-failed
				context.AfterFunc(ctx, func() { _ = server.Close() })
				return ErrSocketLost
			}
			check.Reset(host.AlignedDelay(s.limits.Retry))
		case <-ctx.Done():
		}
	}
	socket.lost() // if the file at the path is another one now, lost prevents that Shutdown removes it
	s.flights.stop()
	s.streams.stop()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close()
	}
	<-failed
	return nil
}

// address returns the address of a listener in the form of ParseAddress.
func address(l net.Listener) string {
	if l.Addr().Network() == unixNetwork {
		return unixPrefix + l.Addr().String()
	}
	return l.Addr().String()
}
