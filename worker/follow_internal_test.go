package worker

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestAwaitServer checks that a worker without a spool waits for its server, with one line in the log, and counts as healthy.
func TestAwaitServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &Worker{
			log:     zerolog.New(zerolog.SyncWriter(&log)),
			cluster: cluster.Cluster{DataDir: t.TempDir(), PostmasterPID: os.Getpid(), PostmasterStart: 1},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.awaitServer(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "waiting for the server"); n != 1 || w.health().Failure != "" {
			t.Errorf("%d lines in the log, failure %q", n, w.health().Failure)
		}
		cancel()
		<-done
	})
}

// TestSearchForServerBacksOff checks that a worker whose server has stopped searches for it at most once a second, and
// at once when a request has found it.
func TestSearchForServerBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &Worker{
			log: zerolog.New(zerolog.SyncWriter(&log)), lines: limits.NewLines(), restarted: make(chan struct{}, 1),
			cluster: cluster.Cluster{DataDir: t.TempDir(), PostmasterPID: os.Getpid(), PostmasterStart: 1},
		}
		w.attach(&serverConn{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.follow(ctx) }()
		searches := func(d time.Duration) int {
			synctest.Wait()
			log.Reset()
			time.Sleep(d)
			synctest.Wait()
			return strings.Count(log.String(), "no server")
		}
		if n := searches(time.Second); n < 2 || n > 4 {
			t.Errorf("%d searches in the first second", n)
		}
		if n := searches(time.Minute); n < 59 || n > 61 {
			t.Errorf("%d searches a minute later", n)
		}
		synctest.Wait()
		log.Reset()
		w.restarted <- struct{}{}
		synctest.Wait()
		if n := strings.Count(log.String(), "no server"); n != 1 {
			t.Errorf("%d searches after a request has found the server", n)
		}
		cancel()
		<-done
	})
}
