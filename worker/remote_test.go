package worker

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/debuginfod"
)

// TestDebuginfodClient: none where no server is configured; one with the configured cache; and a cache that cannot be
// used is told, and keeps nobody from being answered.
func TestDebuginfodClient(t *testing.T) {
	tests := map[string]struct {
		cfg    debuginfod.Config
		client bool
		log    string
	}{
		"off": {},
		"cache": {
			cfg:    debuginfod.Config{URLs: []string{"http://a"}, CacheDir: filepath.Join(t.TempDir(), "a/b")},
			client: true, log: "a/b",
		},
		"broken": {cfg: debuginfod.Config{URLs: []string{"http://a"}, CacheDir: "/proc/nothing"}, log: "no debuginfod"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			w := &Worker{cfg: Config{Debuginfod: tt.cfg}, log: zerolog.New(&log)}
			client := w.debuginfodClient(true)
			if client != nil {
				client.Close()
			}
			if (client != nil) != tt.client || !strings.Contains(log.String(), tt.log) || tt.log == "" && log.Len() > 0 {
				t.Errorf("client %v, log %s", client != nil, log.String())
			}
			done, err := w.newCapturer(true)
			if err != nil || w.capturer == nil {
				t.Fatal(err)
			}
			done()
		})
	}
}

// TestTellDebuginfod: everything that takes long or goes wrong is in the log.
func TestTellDebuginfod(t *testing.T) {
	for kind, want := range map[debuginfod.EventKind]string{
		debuginfod.Started: `"bytes":70`, debuginfod.Progress: `"of":70`, debuginfod.Arrived: "has arrived",
		debuginfod.Missing: `"level":"debug"`, debuginfod.Failed: `"error":"broken"`, debuginfod.Paused: `"pause":60000`,
	} {
		var log bytes.Buffer
		w := &Worker{log: zerolog.New(&log)}
		w.tellDebuginfod(debuginfod.Event{
			Kind: kind, ID: "abcd", Server: "http://a", Total: 70, Took: time.Minute, Err: errors.New("broken"),
		})
		for _, want := range []string{want, `"server":"http://a"`, `"build_id":"abcd"`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("event %d: %s, want %s", kind, log.String(), want)
			}
		}
	}
}
