package queue_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/serve/queue"
)

// handler carries out requests as a test wants it.
type handler struct {
	mu    sync.Mutex
	calls map[int]int   // by process
	slow  chan struct{} // requests for process 1 wait for it

	before func(database, message string) // is called before the queue sends a message; nil: nothing is
}

// watchedConn calls a function before each message.
type watchedConn struct {
	net.Conn

	before func(message string)
}

func (c watchedConn) Write(b []byte) (int, error) {
	c.before(string(b))
	return c.Conn.Write(b)
}

func (h *handler) handle(ctx context.Context, r queue.Request) queue.Result {
	h.mu.Lock()
	h.calls[r.PID]++
	h.mu.Unlock()
	if r.PID == 1 {
		select {
		case <-h.slow:
		case <-ctx.Done():
			return queue.Result{SQLState: "57014", Message: "canceled"}
		}
	}
	return queue.Result{Engine: "test", Depth: 1, Text: "#0 é"}
}

func (h *handler) called(pid int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[pid]
}

// main is a worker's main session.
type mainSession struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

func (m *mainSession) Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f(ctx, m.conn)
}

// serve runs a queue in this process, with requests carried out by h.
func (s *site) serve(t *testing.T, h *handler, cfg queue.Config) (stop func()) {
	t.Helper()
	cfg.Server = &mainSession{conn: s.Connect(t, s.User, "postgres")}
	cfg.Connect = func(ctx context.Context, database string, notified pgconn.NotificationHandler) (*pgx.Conn, error) {
		config, err := pgx.ParseConfig(s.DSN(s.User, database))
		if err != nil {
			return nil, err
		}
		config.OnNotification = notified
		if dial := config.DialFunc; h.before != nil {
			config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				return watchedConn{conn, func(message string) { h.before(database, message) }}, err
			}
		}
		return pgx.ConnectConfig(ctx, config)
	}
	cfg.Handle, cfg.Log = h.handle, zerolog.Nop()
	if cfg.Journal == nil {
		cfg.Journal = &queue.Journal{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		queue.New(cfg).Run(ctx)
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	t.Cleanup(stop)
	return stop
}

// TestSlow checks that a slow capture delays no other request and no transaction. It runs once, and its result is
// written when it is ready.
func TestSlow(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		h := &handler{calls: map[int]int{}, slow: make(chan struct{})}
		stop := s.serve(t, h, queue.Config{Grace: 10 * time.Millisecond, Batch: 4})
		c := s.Connect(t, s.User, "postgres")
		slow := request(t, c, 1)
		pgtest.Wait(t, "the slow one has begun", func() bool { return h.called(1) == 1 })
		began := value[time.Time](t, c, "SELECT clock_timestamp()")
		for range 20 {
			if o := result(t, c, request(t, c, 2)); o.State != "done" || o.Text != "#0 é" {
				t.Errorf("%+v", o)
			}
		}
		if state := value[string](t, c, "SELECT state FROM pg_backtrace_result($1)", slow); state != "queued" {
			t.Errorf("the slow one is %s", state)
		}
		pgtest.Wait(t, "no transaction waits for the slow one", func() bool {
			return value[int](t, c, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND xact_start < $1", began) == 0
		})
		close(h.slow)
		if o := result(t, c, slow); o.State != "done" || h.called(1) != 1 {
			t.Errorf("%+v after %d calls", o, h.called(1))
		}
		// Requests that run when the worker ends are left to the next worker.
		h.slow = make(chan struct{})
		slow = request(t, c, 1)
		pgtest.Wait(t, "another slow one has begun", func() bool { return h.called(1) == 2 })
		stop()
		if state := value[string](t, c, "SELECT state FROM pg_backtrace_result($1)", slow); state != "queued" {
			t.Errorf("after the end it is %s", state)
		}
		close(h.slow)
		s.serve(t, h, queue.Config{})
		if o := result(t, c, slow); o.State != "done" || h.called(1) != 3 {
			t.Errorf("%+v after %d calls", o, h.called(1))
		}
	})
}

// TestTwoQueues checks that two workers for one queue, which should not happen, do not run a request twice.
func TestTwoQueues(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		listener := s.Connect(t, s.User, "postgres")
		run(t, listener, "LISTEN backtrace_done")
		h := &handler{calls: map[int]int{}}
		for range 2 {
			// Where a claim is given up before its requests are done, on a machine that stalls, the other may have them.
			s.serve(t, h, queue.Config{Batch: 3, Grace: time.Minute})
		}
		ids := value[[]int64](t, c, "SELECT pg_request_backtrace(array_fill(2, ARRAY[500]))")
		for _, id := range ids {
			if o := result(t, c, id); o.State != "done" {
				t.Errorf("%+v", o)
			}
		}
		ended := map[string]int{} // each result that is written notifies
		for range ids {
			n, err := listener.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ended[n.Payload]++
		}
		if len(ended) != 500 || h.called(2) != 500 {
			t.Errorf("results written for %d requests, carried out: %d", len(ended), h.called(2))
		}
	})
}

// TestNotifications: a role that may only connect sends notifications all the time, so that each claim finds one. The
// worker has one session for queues, and must still take turns.
func TestNotifications(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		admin := s.Connect(t, s.User, "postgres")
		run(t, admin, "CREATE ROLE nothing LOGIN")
		run(t, admin, "CREATE DATABASE other")
		s.extend(t, "other")
		nothing := s.Connect(t, "nothing", "postgres")
		var sending sync.Mutex
		h := &handler{calls: map[int]int{}, before: func(database, _ string) {
			sending.Lock()
			defer sending.Unlock()
			if database == "postgres" {
				_, _ = nothing.Exec(context.WithoutCancel(t.Context()), "NOTIFY pg_stat_backtrace")
			}
		}}
		stop := s.serve(t, h, queue.Config{Sessions: 2, MinLook: 50 * time.Millisecond, Stay: 100 * time.Millisecond})
		defer stop()
		other := s.Connect(t, s.User, "other")
		for range 3 {
			for _, c := range []*pgx.Conn{admin, other} {
				if o := result(t, c, request(t, c, 2)); o.State != "done" {
					t.Errorf("%+v", o)
				}
			}
		}
	})
}
