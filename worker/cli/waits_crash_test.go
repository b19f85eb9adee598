package cli

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

// lockedBuffer is a standard error that a test reads while a command writes.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestWaitsOfServerThatCrashes: after a crash of the server the figures begin again, with a notice.
func TestWaitsOfServerThatCrashes(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	var stdout, stderr lockedBuffer
	status := make(chan int)
	go func() {
		status <- Main("test", []string{
			"waits", "-D", server.DataDir, "--method", "sampled", "--duration", "10m", "-f", "json",
		}, &stdout, &stderr)
	}()
	pgtest.Wait(t, "the measurement", func() bool { return strings.Contains(stderr.String(), "timing the wait events") })
	victim := server.Connect(t, server.User, "postgres")
	if err := unix.Kill(int(victim.PgConn().PID()), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the notice", func() bool { return strings.Contains(stderr.String(), "counted from zero again") })
	pgtest.Wait(t, "the server after its crash", func() bool {
		c, err := pgx.Connect(t.Context(), server.DSN(server.User, "postgres"))
		if err != nil {
			return false
		}
		defer func() { _ = c.Close(t.Context()) }()
		_, err = c.Exec(t.Context(), "SELECT pg_sleep(1.5)")
		return err == nil
	})
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if s := <-status; s != 0 || !strings.Contains(stdout.String(), "PgSleep") {
		t.Errorf("status %d, %q\n%.2000s", s, stderr.String(), stdout.String())
	}
}
