package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// answerTime is how long a request may take, a killed worker included.
const answerTime = 5 * time.Minute

// load is a set of sessions that request one another's stacks, with their results.
type load struct {
	o        options
	total    int
	sessions []*pgx.Conn
	listener *pgx.Conn
	stop     context.CancelFunc
	heard    chan struct{} // closed when the listener has ended

	mu      sync.Mutex
	told    map[int64]int           // notifications for each request
	waiters map[int64]chan struct{} // by request
	ids     map[int64]bool          // of requests made
	times   []time.Duration         // from asking to the answer in hand
	faults  map[string]int          // answers that are no stack

	took time.Duration
	next atomic.Int64
}

// newLoad connects the sessions.
func newLoad(ctx context.Context, o options, total int) (*load, error) {
	l := &load{
		o: o, total: total, told: map[int64]int{}, waiters: map[int64]chan struct{}{}, ids: map[int64]bool{},
		faults: map[string]int{}, heard: make(chan struct{}),
	}
	for range o.Sessions + 1 {
		c, err := pgx.Connect(ctx, o.DSN)
		if err != nil {
			l.close(ctx)
			return nil, fmt.Errorf("connecting: %w", err)
		}
		l.sessions = append(l.sessions, c)
	}
	l.listener, l.sessions = l.sessions[0], l.sessions[1:]
	if _, err := l.listener.Exec(ctx, "LISTEN backtrace_done"); err != nil {
		l.close(ctx)
		return nil, fmt.Errorf("listening: %w", err)
	}
	listening, cancel := context.WithCancel(ctx)
	l.stop = cancel
	go l.listen(listening)
	return l, nil
}

func (l *load) close(ctx context.Context) {
	if l.stop != nil {
		l.stop()
		<-l.heard
		l.sessions = append(l.sessions, l.listener)
		l.stop = nil
	}
	for _, c := range l.sessions {
		_ = c.Close(context.WithoutCancel(ctx))
	}
	l.sessions = nil
}

// listen counts notifications and wakes the goroutines that wait for them.
func (l *load) listen(ctx context.Context) {
	defer close(l.heard)
	for {
		n, err := l.listener.WaitForNotification(ctx)
		if err != nil {
			return
		}
		var id int64
		if _, err := fmt.Sscan(n.Payload, &id); err != nil {
			continue
		}
		l.mu.Lock()
		l.told[id]++
		if w := l.waiters[id]; w != nil {
			close(w)
			delete(l.waiters, id)
		}
		l.mu.Unlock()
	}
}

// answered waits for the notification of a request.
func (l *load) answered(ctx context.Context, id int64) error {
	l.mu.Lock()
	l.ids[id] = true
	w := make(chan struct{})
	if l.told[id] > 0 {
		close(w)
	} else {
		l.waiters[id] = w
	}
	l.mu.Unlock()
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	select {
	case <-w:
		return nil
	case <-timer.C:
		return fmt.Errorf("request %d has no answer after %v", id, answerTime)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// queue makes the requests, each session one after the other.
func (l *load) queue(ctx context.Context) error { return l.all(ctx, l.request) }

// wait makes waiting calls instead.
func (l *load) wait(ctx context.Context) error {
	// The first one waits for the worker.
	for end := time.Now().Add(answerTime); ; time.Sleep(10 * time.Millisecond) {
		_, err := l.call(ctx, l.sessions[0], l.target(0))
		if err == nil || time.Now().After(end) {
			break
		}
	}
	return l.all(ctx, l.call)
}

// all lets every session make requests until the total is reached, and records the time of each answer.
func (l *load) all(ctx context.Context, ask func(context.Context, *pgx.Conn, uint32) (string, error)) error {
	began := time.Now()
	errs := make([]error, len(l.sessions))
	total := int64(l.total)
	var wg sync.WaitGroup
	for i, c := range l.sessions {
		wg.Go(func() {
			for ctx.Err() == nil && l.next.Add(1) <= total {
				start := time.Now()
				fault, err := ask(ctx, c, l.target(i))
				if err != nil {
					errs[i] = err
					return
				}
				l.note(time.Since(start), fault)
			}
		})
	}
	wg.Wait()
	l.took = time.Since(began)
	return errors.Join(errs...)
}

// target returns another session's process, a different one each time.
func (l *load) target(i int) uint32 {
	step := 1 + int(l.next.Load())%(len(l.sessions)-1)
	return l.sessions[(i+step)%len(l.sessions)].PgConn().PID()
}

func (l *load) note(took time.Duration, fault string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, took)
	if fault != "" {
		l.faults[fault]++
	}
}

// request makes one request and fetches its result when it is there.
func (l *load) request(ctx context.Context, c *pgx.Conn, pid uint32) (fault string, err error) {
	var id int64
	if err := c.QueryRow(ctx, "SELECT pg_request_backtrace($1::int)", pid).Scan(&id); err != nil {
		return "", fmt.Errorf("making a request: %w", err)
	}
	if err := l.answered(ctx, id); err != nil {
		return "", err
	}
	var state, text string
	err = c.QueryRow(ctx, "SELECT state, coalesce(backtrace, sqlstate || ' ' || message, '') FROM pg_backtrace_result($1)",
		id).Scan(&state, &text)
	switch {
	case err != nil:
		return "", fmt.Errorf("result of request %d: %w", id, err)
	case state != "done" || !strings.HasPrefix(text, "#0 "):
		return state + ": " + text, nil
	}
	return "", nil
}

// call makes one waiting call.
func (l *load) call(ctx context.Context, c *pgx.Conn, pid uint32) (fault string, err error) {
	var text *string
	err = c.QueryRow(ctx, "SELECT pg_get_backtrace($1::int)", pid).Scan(&text)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused):
		return refused.Code + ": " + refused.Message, nil
	case err != nil:
		return "", fmt.Errorf("calling: %w", err)
	case text == nil || !strings.HasPrefix(*text, "#0 "):
		return "no stack", nil
	}
	return "", nil
}

// check verifies that each request has ended exactly once: one row, one notification.
func (l *load) check(ctx context.Context) error {
	// Notifications come in the order of commits. When this one has arrived, so have all before it.
	if _, err := l.sessions[0].Exec(ctx, "NOTIFY backtrace_done, '-1'"); err != nil {
		return fmt.Errorf("checking: %w", err)
	}
	if err := l.answered(ctx, -1); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ids, -1)
	delete(l.told, -1)
	var errs []error
	for id, n := range l.told {
		if n != 1 || !l.ids[id] {
			errs = append(errs, fmt.Errorf("request %d: %d notifications, made: %v", id, n, l.ids[id]))
		}
	}
	for fault, n := range l.faults {
		errs = append(errs, fmt.Errorf("%d answers are no stack: %s", n, fault))
	}
	ids := make([]int64, 0, len(l.ids))
	for id := range l.ids {
		ids = append(ids, id)
	}
	var done, queued int
	err := l.sessions[0].QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'queued')
		FROM backtrace.request WHERE id = ANY ($1)`, ids).Scan(&done, &queued)
	if err != nil || len(l.told) != l.total || len(l.ids) != l.total || done != l.total || queued != 0 {
		errs = append(errs, err, fmt.Errorf("%d requests to make: %d made, %d notified, %d rows done, %d queued",
			l.total, len(l.ids), len(l.told), done, queued))
	}
	return errors.Join(errs...)
}

// print prints a line of figures.
func (l *load) print(name string, kills int) {
	slices.Sort(l.times)
	at := func(percent int) time.Duration {
		if len(l.times) == 0 {
			return 0
		}
		return l.times[(len(l.times)-1)*percent/100].Round(10 * time.Microsecond)
	}
	fmt.Fprintf(l.o.Out,
		"%-34s %7d answers by %d sessions in %v: %.0f/s; p50 %v, p99 %v, max %v; %d kills, %d without a stack\n", name,
		len(l.times), l.o.Sessions, l.took.Round(time.Millisecond), float64(len(l.times))/l.took.Seconds(),
		at(50), at(99), at(100), kills, len(l.faults))
}
