package worker

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/naming/debuginfod"
)

// TestDebuginfodClient: there is no client without a configured server. A client uses the configured cache. If the
// cache cannot be used, the log has the reason, and the worker can still capture.
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

// TestTellDebuginfod: the log has a line for each kind of event of the debuginfod client.
func TestTellDebuginfod(t *testing.T) {
	for kind, want := range map[debuginfod.EventKind]string{
		debuginfod.Started: `"bytes":70`, debuginfod.Arrived: "has arrived",
		debuginfod.Progress: `"bytes":20,"of":70,"percent":28,"left_ms":150000,"took_ms":60000`,
		debuginfod.Missing:  `"level":"debug"`, debuginfod.Failed: `"error":"broken"`,
		debuginfod.Paused: `"pause_ms":60000`,
	} {
		var log bytes.Buffer
		w := &Worker{log: zerolog.New(&log)}
		w.downloads.wanted("postgres", "abcd")
		w.tellDebuginfod(debuginfod.Event{
			Kind: kind, ID: "abcd", Server: "http://a", Bytes: 20, Total: 70, Took: time.Minute,
			Err: errors.New("broken"),
		})
		for _, want := range []string{want, `"server":"http://a"`, `"build_id":"abcd"`, `"image":"postgres"`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("event %d: %s, want %s", kind, log.String(), want)
			}
		}
	}
}

// TestProgressLines: the log has the progress of a download after 5 s, and then at growing intervals. The lines of one
// download do not delay the lines of another one.
func TestProgressLines(t *testing.T) {
	var log bytes.Buffer
	w := &Worker{log: zerolog.New(&log)}
	tell := func(id string, kind debuginfod.EventKind, took time.Duration) int {
		log.Reset()
		w.tellDebuginfod(debuginfod.Event{Kind: kind, ID: id, Bytes: 1, Took: took})
		return strings.Count(log.String(), "\n")
	}
	for round := range 2 {
		var at []int
		tell("a", debuginfod.Started, 0)
		for second := range 200 {
			if tell("a", debuginfod.Progress, time.Duration(second)*time.Second) > 0 {
				at = append(at, second)
			}
		}
		if want := []int{5, 10, 15, 23, 35, 53, 80, 120, 180}; !slices.Equal(at, want) {
			t.Errorf("round %d: told after %v s, not %v", round, at, want)
		}
		if tell("b", debuginfod.Progress, 6*time.Second) != 1 || tell("b", debuginfod.Failed, 7*time.Second) != 1 {
			t.Errorf("round %d: another download is not told of", round)
		}
		if tell("a", debuginfod.Arrived, 200*time.Second) != 1 {
			t.Errorf("round %d: the end is not told", round)
		}
	}
}
