package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const sizesSQL = `
SELECT (SELECT count(*) FROM backtrace.request), (SELECT count(*) FROM backtrace.request WHERE state = 'queued'),
       pg_relation_size(c.oid) / 1024, pg_indexes_size(c.oid) / 1024, pg_total_relation_size(c.reltoastrelid) / 1024,
       s.n_dead_tup, t.n_dead_tup, s.autovacuum_count, s.n_tup_ins
FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid JOIN pg_stat_all_tables t ON t.relid = c.reltoastrelid
WHERE c.oid = 'backtrace.request'::regclass`

// watch makes requests and waiting calls at a steady rate, and prints the size of the table over time.
func watch(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(ctx, o.Duration)
	defer cancel()
	queued, err := newLoad(ctx, o, 1<<62)
	if err != nil {
		return err
	}
	defer queued.close(ctx)
	waiting, err := newLoad(ctx, o, 1<<62)
	if err != nil {
		return err
	}
	defer waiting.close(ctx)
	k := startKiller(context.WithoutCancel(ctx), func() *exec.Cmd { return o.Worker(o.KeepRows) }, 0)
	if err := served(ctx, waiting.sessions[0]); err != nil {
		_, endErr := k.end()
		return errors.Join(err, endErr)
	}
	var wg sync.WaitGroup
	wg.Go(func() { queued.steady(ctx, queued.request) })
	wg.Go(func() { waiting.steady(ctx, waiting.call) })
	err = report(ctx, o, queued, waiting)
	wg.Wait()
	_, endErr := k.end()
	for _, l := range []*load{queued, waiting} {
		for fault, n := range l.faults {
			fmt.Fprintf(o.Out, "%d times: %s\n", n, fault)
		}
	}
	return errors.Join(err, endErr)
}

// served waits until the worker is ready. Failures of earlier requests would not be faults.
func served(ctx context.Context, c *pgx.Conn) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ready := false; ; {
		if err := c.QueryRow(ctx, "SELECT backtrace.served()").Scan(&ready); err != nil || ready {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// steady makes requests at the rate of the options, the sessions in turn.
func (l *load) steady(ctx context.Context, ask func(context.Context, *pgx.Conn, uint32) (string, error)) {
	tick := time.NewTicker(time.Second / time.Duration(max(1, l.o.Rate)))
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, c := range l.sessions {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				l.next.Add(1)
				start := time.Now()
				fault, err := ask(ctx, c, l.target(i))
				if err != nil {
					fault = err.Error()
				}
				if ctx.Err() != nil {
					return
				}
				l.note(time.Since(start), fault)
			}
		})
	}
}

// report prints a line now and then.
func report(ctx context.Context, o options, queued, waiting *load) error {
	c, err := pgx.Connect(ctx, o.DSN)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	fmt.Fprintf(o.Out, "%8s %9s %9s %7s %7s %7s %8s %9s %9s %9s %9s %7s\n", "time", "requests", "calls", "faults", "rows",
		"queued", "table kB", "index kB", "TOAST kB", "dead", "dead TOAST", "vacuums")
	began := time.Now()
	tick := time.NewTicker(o.Report)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var n [9]int64
		into := make([]any, len(n))
		for i := range n {
			into[i] = &n[i]
		}
		if err := c.QueryRow(ctx, sizesSQL).Scan(into...); err != nil {
			if ctx.Err() != nil {
				return nil // the time is up
			}
			return fmt.Errorf("sizes: %w", err)
		}
		made, faults := queued.counts()
		calls, more := waiting.counts()
		fmt.Fprintf(o.Out, "%8s %9d %9d %7d %7d %7d %8d %9d %9d %9d %9d %7d\n", time.Since(began).Round(time.Second),
			made, calls, faults+more, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7])
	}
}

// counts returns the number of answers, and the number of answers without a stack.
func (l *load) counts() (answers, faults int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.faults {
		faults += n
	}
	return len(l.times), faults
}
