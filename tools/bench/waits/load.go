package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// accounts is how many rows the table has.
const accounts = 100_000

// schema makes tables like pgbench's.
func schema() []string {
	return []string{
		"DROP TABLE IF EXISTS waits_accounts, waits_history",
		"CREATE TABLE waits_accounts (aid int PRIMARY KEY, abalance int, filler char(84))",
		"CREATE TABLE waits_history (aid int, delta int, mtime timestamp)",
		fmt.Sprintf("INSERT INTO waits_accounts SELECT i, 0, '' FROM generate_series(1, %d) i", accounts),
		"VACUUM ANALYZE waits_accounts",
	}
}

// load is a number of sessions that execute transactions.
type load struct {
	name   string
	pids   []int
	cancel context.CancelFunc
	wg     sync.WaitGroup

	count   atomic.Int64
	failure atomic.Pointer[error]
}

// startLoad connects the sessions and starts them.
func startLoad(ctx context.Context, dsn, name string, sessions int) (*load, error) {
	first, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = first.Close(ctx) }()
	for _, statement := range schema() {
		if _, err := first.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &load{name: name, cancel: cancel}
	for range sessions {
		c, err := pgx.Connect(ctx, dsn)
		if err != nil {
			l.stop()
			return nil, err
		}
		l.pids = append(l.pids, int(c.PgConn().PID()))
		l.wg.Go(func() { l.work(ctx, c) })
	}
	return l, nil
}

// work executes transactions until ctx ends.
func (l *load) work(ctx context.Context, c *pgx.Conn) {
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for ctx.Err() == nil {
		err := l.transaction(ctx, c)
		if err != nil && ctx.Err() == nil {
			l.failure.Store(&err)
			return
		}
		l.count.Add(1)
	}
}

// transaction executes one.
func (l *load) transaction(ctx context.Context, c *pgx.Conn) error {
	id := 1 + rand.IntN(accounts)
	const query = "SELECT abalance FROM waits_accounts WHERE aid = $1"
	var balance int
	switch l.name {
	case "simple":
		return c.QueryRow(ctx, query, pgx.QueryExecModeSimpleProtocol, id).Scan(&balance)
	case "prepared":
		return c.QueryRow(ctx, query, id).Scan(&balance)
	case "tpcb":
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			delta := rand.IntN(10_000) - 5000
			const update = "UPDATE waits_accounts SET abalance = abalance + $1 WHERE aid = $2"
			if _, err := tx.Exec(ctx, update, delta, id); err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, query, id).Scan(&balance); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO waits_history VALUES ($1, $2, now())", id, delta)
			return err
		})
	}
	return fmt.Errorf("there is no load %q", l.name)
}

func (l *load) done() int64 { return l.count.Load() }

func (l *load) err() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// spent is the processor time of the sessions' backends.
func (l *load) spent() (sum time.Duration) {
	for _, pid := range l.pids {
		sum += processorTime(pid)
	}
	return sum
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

// quantiles returns the 5th, 50th and 95th percentile of the ratios.
func (r *result) quantiles() (low, median, high float64) {
	sorted := slices.Sorted(slices.Values(r.ratios))
	at := func(q float64) float64 { return sorted[int(q*float64(len(sorted)-1)+0.5)] }
	return at(0.05), at(0.5), at(0.95)
}
