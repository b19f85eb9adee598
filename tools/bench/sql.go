package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sqlFigure is the round trip time of a statement, measured by the client.
type sqlFigure struct {
	Statement string  `json:"statement"`
	Target    string  `json:"target,omitempty"`
	Count     int     `json:"count"`
	US        summary `json:"us"`
}

const (
	ourStatement = "SELECT pg_get_backtrace($1)"

	tooMany     = "53400" // configuration_limit_exceeded: the worker's limit per role
	tooManyWait = time.Second
	warmUp      = 20 // calls before the clock counts
)

// sql measures the worker and calls of pg_get_backtrace.
func (r *report) sql(ctx context.Context, o options, s *server, t *targets) (err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	remove, err := installExtension(ctx, conn)
	if err != nil {
		r.notef("SQL calls were not measured: %v", err)
		return nil
	}
	defer func() { err = errors.Join(err, remove()) }()
	if _, err := conn.Exec(ctx, "CREATE EXTENSION pg_stat_backtrace"); err != nil {
		return fmt.Errorf("CREATE EXTENSION: %w", err)
	}
	w, ready, err := startWorkers(ctx, o.Binary, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	r.Worker = &workerFigures{ReadyMS: ready, StartRSS: w.memory("VmRSS")}
	statements := []string{ourStatement}
	if err := inProcess(ctx, o, s, conn); err != nil {
		r.notef("no in-process function to compare with: %v", err)
	} else {
		statements = append(statements, inProcessStatement)
	}
	if err := r.calls(ctx, o, conn, t, statements); err != nil {
		return err
	}
	r.Worker.LoadedRSS, r.Worker.PeakRSS = w.memory("VmRSS"), w.memory("VmHWM")
	return nil
}

func (r *report) calls(ctx context.Context, o options, conn *pgx.Conn, t *targets, statements []string) error {
	figure, err := roundTrips(ctx, conn, o.Calls, "SELECT $1::int::text", 1)
	if err != nil {
		return err
	}
	r.SQL = append(r.SQL, figure)
	for _, target := range t.List {
		if !target.SQL {
			continue
		}
		for _, statement := range statements {
			target.wake()
			figure, err := roundTrips(ctx, conn, o.Calls, statement, target.PID)
			target.rest()
			if err != nil {
				return err
			}
			figure.Target = target.Name
			r.SQL = append(r.SQL, figure)
		}
	}
	return nil
}

// roundTrips runs a statement with one parameter that returns a text, count times.
func roundTrips(ctx context.Context, conn *pgx.Conn, count int, statement string, argument int) (sqlFigure, error) {
	samples := make([]float64, 0, count)
	for i := -warmUp; i < count; {
		var text *string
		start := time.Now()
		err := conn.QueryRow(ctx, statement, argument).Scan(&text)
		took := time.Since(start)
		var refused *pgconn.PgError
		switch {
		case errors.As(err, &refused) && refused.Code == tooMany:
			select {
			case <-ctx.Done():
			case <-time.After(tooManyWait):
			}
			continue
		case err != nil:
			return sqlFigure{}, fmt.Errorf("%s: %w", statement, err)
		case text == nil || *text == "":
			return sqlFigure{}, fmt.Errorf("%s: no text for process %d", statement, argument)
		}
		if i++; i > 0 {
			samples = append(samples, float64(took.Nanoseconds())/1000)
		}
	}
	return sqlFigure{Statement: statement, Count: len(samples), US: summarize(samples)}, nil
}
