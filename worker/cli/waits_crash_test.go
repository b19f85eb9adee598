package cli

import (
	"bytes"
	"fmt"
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
	for seconds := 1.5; ; seconds *= 4 { // a busy machine needs longer to find the new server
		status, stdout, stderr := waitsBesideCrash(t, server, seconds)
		if status == 0 && !strings.Contains(stdout, "PgSleep") && seconds < pgtest.Patience.Seconds()/4 {
			continue
		}
		if status != 0 || !strings.Contains(stdout, "PgSleep") {
			t.Errorf("status %d, %q\n%.2000s", status, stderr, stdout)
		}
		break
	}
}

// waitsBesideCrash times waits while the server crashes, and after the crash as long as a session sleeps for this time.
func waitsBesideCrash(t *testing.T, server *pgtest.Server, seconds float64) (int, string, string) {
	t.Helper()
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
		_, err = c.Exec(t.Context(), fmt.Sprintf("SELECT pg_sleep(%g)", seconds))
		return err == nil
	})
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	return <-status, stdout.String(), stderr.String()
}
