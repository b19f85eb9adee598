package cluster_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"pg_stat_backtrace/worker/pg/cluster"
)

// TestHugeMessage: a server that announces a message of a gigabyte gets no memory for it.
func TestHugeMessage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // the client closes the connection
				_, _ = conn.Read(make([]byte, 8192))
				message := append([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 0}, 'S')
				_, _ = conn.Write(binary.BigEndian.AppendUint32(message, 1<<30-1))
				_, _ = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}()
		}
	}()
	config, err := cluster.SessionConfig(cluster.ConnOptions{
		ConnString: fmt.Sprintf("host=%s port=5432 user=x sslmode=disable connect_timeout=10", dir),
	}, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	config.ConnectTimeout = time.Minute
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err == nil {
		_ = conn.Close(t.Context())
	}
	var large *pgproto3.ExceededMaxBodyLenErr
	if !errors.As(err, &large) {
		t.Errorf("got %v", err)
	}
}
