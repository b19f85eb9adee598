package pgtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Time limits of tests. Both are longer than necessary on a slow and busy machine.
const (
	// Patience is the time limit of a wait for something that must happen.
	Patience = 3 * time.Minute
	// Soon is the time limit for something that happens at once, or right after a deadline.
	Soon = 15 * time.Second
)

const connectTimeout = Patience

// DSN returns a libpq connection string (keyword/value) for the server's socket.
func (s *Server) DSN(user, database string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", s.SocketDir, s.Port, user, database)
}

// TCP returns a libpq connection string (keyword/value) for the server's TCP port; Options.TCP must have been set.
func (s *Server) TCP(user, database string) string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s sslmode=disable", s.Port, user, database)
}

// Connect opens a session as user in database; it is closed when the test ends.
func (s *Server) Connect(t testing.TB, user, database string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), connectTimeout)
	defer cancel()
	conn, err := connect(ctx, s.DSN(user, database))
	if err != nil {
		t.Fatalf("connecting as %s: %v", user, err)
	}
	t.Cleanup(func() {
		if conn.PgConn().IsBusy() {
			// A goroutine still waits for the answer to a statement, and Close panics while that goroutine uses the connection.
			_ = conn.PgConn().Conn().Close()
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// Exec runs SQL (several statements may be given) as the superuser in database postgres.
func (s *Server) Exec(t testing.TB, sql string) {
	t.Helper()
	conn := s.Connect(t, s.User, "postgres")
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parsing %q: %w", dsn, err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return conn, nil
}

// Wait calls condition until it is true, with a pause that grows to 20 ms. It fails the test if the condition does not
// become true in time. The parameter what describes the condition in the failure message.
func Wait(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for pause := time.Millisecond; !condition(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(pause)
	}
}
