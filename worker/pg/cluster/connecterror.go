package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Connect opens a session. The text of its error has no words of the driver. It has the user, the database, and for each address the
// answer of the server or of the system. The error wraps the driver's error.
func Connect(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, &connectError{err}
	}
	return conn, nil
}

type connectError struct{ err error }

func (e *connectError) Error() string {
	var failed *pgconn.ConnectError
	if !errors.As(e.err, &failed) {
		return e.err.Error()
	}
	text := "cannot connect as user " + failed.Config.User
	if failed.Config.Database != "" {
		text += " to database " + failed.Config.Database
	}
	var reasons []string
	for _, reason := range connectReasons(failed.Unwrap()) {
		if !slices.Contains(reasons, reason) { // for example with and without TLS
			reasons = append(reasons, reason)
		}
	}
	return text + ": " + strings.Join(reasons, "; ")
}

// Unwrap returns the driver's error.
func (e *connectError) Unwrap() error { return e.err }

// connectReasons returns the reasons of all attempts.
func connectReasons(err error) (reasons []string) {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range several.Unwrap() {
			reasons = append(reasons, connectReasons(one)...)
		}
		return reasons
	}
	var refusal *pgconn.PgError
	var unknown *net.DNSError
	var failed *net.OpError
	switch {
	case errors.As(err, &refusal):
		return []string{refusal.Error()}
	case errors.As(err, &unknown):
		return []string{fmt.Sprintf("host %s: %s", unknown.Name, unknown.Err)}
	case errors.As(err, &failed) && failed.Addr != nil:
		inner := failed.Err
		for next := errors.Unwrap(inner); next != nil; next = errors.Unwrap(inner) {
			inner = next
		}
		return []string{failed.Addr.String() + ": " + inner.Error()}
	}
	return []string{err.Error()}
}
