package console

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLogFormats: each format, and the choice of auto.
func TestLogFormats(t *testing.T) {
	for format, want := range map[string]string{
		"json": `{"level":"info","role":"a\u202eb","time":`,
		"auto": `{"level":"info","role":"a\u202eb","time":`,
		"otel": `"severity_text":"INFO","severity_number":9,"body":"hello","attributes":{"role":"a\u202eb"}}`,
		// Without journald, lines are JSON.
		"journald": `{"level":"info","role":"a\u202eb","time":`,
		"console":  "hello",
	} {
		var out bytes.Buffer
		sink, err := LogSink(&out, format)
		if err != nil {
			t.Fatal(err)
		}
		log, err := Logger(sink, "info")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/run/systemd/journal/socket"); err == nil && format == "journald" {
			continue // it goes there
		}
		log.Info().Str("role", "a\u202eb").Msg("hello")
		log.Debug().Msg("hidden")
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "hidden") {
			t.Errorf("%s: %s", format, out.String())
		}
	}
	if _, err := LogSink(&bytes.Buffer{}, "xml"); err == nil || !strings.Contains(err.Error(), "otel or journald") {
		t.Errorf("got %v", err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino))
	sink, err := LogSink(f, "auto")
	if got := fmt.Sprintf("%T", sink); err != nil || got != "*render.Journal" {
		t.Errorf("a log that is journald's stream: %s, %v", got, err)
	}
}
