package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

const sample = `{"level":"warn","verb":"get","pid":4711,"role":"bob \"the\" \u202e","ratio":0.5,"list":[1,"a"],` +
	`"error":"first\nsecond","time":"2026-11-27T00:20:27.709170097Z","message":"request failed"}` + "\n"

func TestOTel(t *testing.T) {
	for input, want := range map[string]string{
		sample: `{"timestamp":"2026-11-27T00:20:27.709170097Z","severity_text":"WARN","severity_number":13,` +
			`"body":"request failed","attributes":{"verb":"get","pid":4711,"role":"bob \"the\" \u202e","ratio":0.5,` +
			`"list":[1,"a"],"error":"first\nsecond"}}` + "\n",
		`{"level":"info","message":"ready"}`: `{"severity_text":"INFO","severity_number":9,"body":"ready","attributes":{}}` +
			"\n",
		`{"message":7}`: `{"severity_text":"INFO","severity_number":9,"body":"","attributes":{"message":7}}` + "\n",
		"no JSON\n":     "no JSON\n",
		`{"level":`:     `{"level":`,
		`["x"]`:         `["x"]`,
	} {
		var out bytes.Buffer
		n, err := OTel{&out}.Write([]byte(input))
		if err != nil || n != len(input) || out.String() != want {
			t.Errorf("%s: %d, %v\ngot  %s\nwant %s", input, n, err, out.String(), want)
		}
	}
}

// TestSeverities: each level of the logger has its number and its priority.
func TestSeverities(t *testing.T) {
	for level, want := range map[zerolog.Level]string{
		zerolog.DebugLevel: "DEBUG 5 7", zerolog.InfoLevel: "INFO 9 6", zerolog.WarnLevel: "WARN 13 4",
		zerolog.ErrorLevel: "ERROR 17 3", zerolog.TraceLevel: "TRACE 1 7",
	} {
		var out bytes.Buffer
		log := zerolog.New(&out)
		log.WithLevel(level).Msg("x")
		l, err := parse(out.Bytes())
		s := l.severity()
		if got := fmt.Sprintf("%s %d %d", s.text, s.number, s.priority); err != nil || got != want {
			t.Errorf("%s: %s, %v", level, got, err)
		}
	}
}

func TestIsJournal(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]bool{
		fmt.Sprintf("%d:%d", stat.Dev, stat.Ino): true, fmt.Sprintf("%d:%d", stat.Dev, stat.Ino+1): false,
		"": false, "8": false, "x:y": false,
	} {
		if got := IsJournal(f, stream); got != want {
			t.Errorf("%q: %t", stream, got)
		}
	}
}

// TestJournalDown: lines are not lost while journald does not run, and reach it when it is back.
func TestJournalDown(t *testing.T) {
	var out bytes.Buffer
	path := filepath.Join(t.TempDir(), "socket")
	j := &Journal{Else: &out, Path: path}
	defer func() { _ = j.Close() }()
	if _, err := j.Write([]byte(sample)); err != nil || out.String() != sample {
		t.Errorf("%v: %s", err, out.String())
	}
	for range 2 { // journald, and journald after a restart
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		out.Reset()
		if _, err := j.Write([]byte(sample)); err != nil || out.Len() > 0 {
			t.Errorf("%v: %s", err, out.String())
		}
		buffer := make([]byte, 4096)
		_ = l.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := l.Read(buffer)
		if err != nil || !bytes.Contains(buffer[:n], []byte("PRIORITY=4\n")) {
			t.Errorf("%v: %q", err, buffer[:n])
		}
		_ = l.Close()
		_ = os.Remove(path)
	}
}

// TestRealJournal: a real journald stores each field.
func TestRealJournal(t *testing.T) {
	socket, read := journald(t)
	j := &Journal{Else: os.Stderr, Path: socket}
	defer func() { _ = j.Close() }()
	huge := fmt.Sprintf(`{"level":"info","text":%q,"message":"huge"}`, strings.Repeat("x", 1<<20))
	for _, text := range []string{sample, huge} {
		if _, err := j.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	var entries map[string]map[string]string
	for late := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		entries = read()
		if entries["request failed"] != nil && entries["huge"] != nil {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("journald has not stored the lines: %v", entries)
		}
	}
	for name, want := range map[string]string{
		"PRIORITY": "4", "SYSLOG_IDENTIFIER": "pg_stat_backtrace", "PGSB_PID": "4711", "PGSB_VERB": "get",
		"PGSB_ROLE": `bob "the" \u202e`, "PGSB_ERROR": "first\nsecond", "PGSB_RATIO": "0.5", "PGSB_LIST": `[1,"a"]`,
		"MESSAGE": `request failed verb=get pid=4711 role="bob \"the\" \u202e" ratio=0.5 list=[1,"a"] error="first\nsecond"`,
	} {
		if got := entries["request failed"][name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := entries["huge"]["MESSAGE"]; !strings.HasPrefix(got, "huge text=xxx") || len(got) > maxMessage {
		t.Errorf("a huge line has %d bytes", len(got))
	}
}

// journald starts a journald with its own /run, and returns its socket and a function that reads the entries by event.
func journald(t *testing.T) (socket string, read func() map[string]map[string]string) {
	t.Helper()
	const program = "/lib/systemd/systemd-journald"
	if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
		t.Skip("a real journald needs systemd and root")
	}
	journalctl, err := exec.LookPath("journalctl")
	if err != nil {
		t.Skip("no journalctl")
	}
	run := t.TempDir()
	for _, dir := range []string{"systemd/journal", "log/journal"} {
		if err := os.MkdirAll(filepath.Join(run, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	daemon := exec.Command("unshare", "--mount", "--", "sh", "-c", `mount --bind "$0" /run && exec "$1"`, run, program)
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = daemon.Wait() }()
	t.Cleanup(func() { _ = daemon.Process.Signal(syscall.SIGTERM); <-done })
	socket = filepath.Join(run, "systemd/journal/socket")
	for late := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unixgram", socket)
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-done:
			t.Skip("journald does not run here: a mount namespace is needed")
		default:
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(late) {
			t.Fatal(err)
		}
	}
	return socket, func() map[string]map[string]string {
		return entries(t, journalctl, filepath.Join(run, "log/journal"))
	}
}

// entries reads the entries of a journal by event.
func entries(t *testing.T, journalctl, dir string) map[string]map[string]string {
	t.Helper()
	out, err := exec.Command(journalctl, "-D", dir, "-o", "json", "--no-pager", "--all",
		"SYSLOG_IDENTIFIER=pg_stat_backtrace").Output()
	if err != nil {
		return nil // there is no file yet
	}
	found := map[string]map[string]string{}
	for text := range bytes.Lines(out) {
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{}
		for name, value := range fields {
			if s, ok := value.(string); ok {
				texts[name] = s
			}
		}
		found[texts["PGSB_EVENT"]] = texts
	}
	return found
}
