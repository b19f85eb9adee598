package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/cli/topcmd"
)

// topServers tests the list of servers with a server that has findings.
func topServers(t *testing.T, s *pgtest.Server, pids [2]int) {
	t.Helper()
	finding := fmt.Sprintf("PID %d (the root, idle in transaction", pids[0])
	text := top(t, "--all", "--batch", "-n", "1")
	if !strings.Contains(text, s.DataDir) || !strings.Contains(text, "5/5") {
		t.Errorf("%s", text)
	}
	var list topcmd.ServerList
	if err := json.Unmarshal([]byte(top(t, "--all", "--format", "json", "-n", "1")), &list); err != nil {
		t.Fatal(err)
	}
	found := false
	for i := range list.Servers {
		x := &list.Servers[i]
		if x.Name != s.DataDir {
			continue
		}
		found = true
		if x.Active == nil || x.AgeSeconds == nil || x.Error != "" || x.Findings == nil || len(x.Findings.Findings) < 2 ||
			!strings.HasPrefix(x.Findings.Findings[0].Text, finding) {
			t.Errorf("%+v", x)
		}
	}
	if !found {
		t.Errorf("the server is not in %+v", list)
	}
	t.Run("opened", func(t *testing.T) { topOpened(t, s, finding) })
}

// topOpened opens a server from the list in a terminal, and returns to the list.
func topOpened(t *testing.T, s *pgtest.Server, finding string) {
	t.Helper()
	x := openTerminal(t)
	x.size(t, 180, 40)
	before := x.modes(t)
	ended := x.run(t, "top", "--all", "--sort", "name", "--interval", "200ms")
	pressed := ""
	pgtest.Wait(t, "the server to be selected", func() bool { // other servers may run on the host
		var selected []string
		for line := range strings.Lines(x.screen()) {
			if strings.HasPrefix(line, "▸") {
				fields := strings.Fields(line)
				selected = append(selected, fields[len(fields)-1])
			}
		}
		switch {
		case len(selected) != 1: // the screen is being drawn
		case selected[0] == s.DataDir:
			return true
		case selected[0] != pressed:
			pressed = selected[0]
			x.send(t, "j")
		}
		return false
	})
	x.await(t, "▲ "+finding)
	x.send(t, "\r")
	x.await(t, "active sessions (now")
	x.send(t, "q")
	x.await(t, "clients")
	x.await(t, "order")
	x.send(t, "q")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := x.modes(t); got != before {
		t.Errorf("ended: the terminal has %+v, before %+v", got, before)
	}
}

// run starts a command of this program on the terminal. The channel receives the error of its end.
func (x *pseudoTerminal) run(t *testing.T, words ...string) <-chan error {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command(exe)
	program.Env = append(os.Environ(), topVariable+"="+strings.Join(words, "\n"), "TERM=xterm-256color", "LC_ALL=C.UTF-8", "NO_COLOR=")
	program.Stdin, program.Stdout, program.Stderr = x.slave, x.slave, x.slave
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	t.Cleanup(func() { _ = syscall.Kill(-program.Process.Pid, syscall.SIGKILL) })
	x.pid = program.Process.Pid
	return ended
}

// TestTopStarts: before there is any data, the screen names the address to which it connects, and the key q ends it.
func TestTopStarts(t *testing.T) {
	answer := make(chan struct{})
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		http.Error(w, "none", http.StatusNotFound)
	}))
	t.Cleanup(worker.Close)
	for _, quits := range []bool{true, false} {
		x := openTerminal(t)
		before := x.modes(t)
		ended := x.run(t, "top", "--connect", worker.URL)
		x.await(t, "connecting to "+worker.URL+" … ")
		x.await(t, "q quit")
		if quits {
			x.send(t, "q")
		} else {
			close(answer)
		}
		if err := <-ended; (err == nil) != quits {
			t.Errorf("by the key: %v, the command ended with %v", quits, err)
		}
		if got := x.modes(t); got != before {
			t.Errorf("the terminal has %+v, before %+v", got, before)
		}
		if !quits {
			x.await(t, "has no incident screen")
		}
	}
}

// TestTopWorkers lists a worker that answers and another that does not run.
func TestTopWorkers(t *testing.T) {
	at := time.Now().Format(time.RFC3339)
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"time": %q, "info": {"server_version": 18, "last": %q, "interval_seconds": 1, "max_connections": 77,
			"sessions": {"active": 3, "client_backends": 5}}, "findings": {"time": %q, "findings": [
			{"key": "k", "rule": "r", "severity": "critical", "text": "PID 7 \u001b[2J blocks 2 sessions", "since": %q}]},
			"load": {"from": %q, "to": %q, "column_seconds": 1, "sampled_seconds": 1, "classes": ["CPU"], "active_sessions": [3],
			"columns": [{"time": %q, "kind": "sampled", "active_sessions": [3]}]}}`, at, at, at, at, at, at, at)
	}))
	t.Cleanup(worker.Close)
	t.Setenv("LC_ALL", "C.UTF-8")
	text := top(t, "--connect", worker.URL, "--connect", "http://127.0.0.1:1", "--batch", "-n", "1", "--width", "100", "--height", "20")
	lines := strings.Split(text, "\n")
	if len(lines) < 5 || !strings.Contains(lines[0], "2 servers") || !strings.Contains(lines[2], worker.URL) ||
		!strings.Contains(lines[2], "5/77") || !strings.Contains(lines[2], "▲1") || !strings.Contains(lines[3], "✗") ||
		!strings.Contains(text, "blocks 2 sessions") || strings.Contains(text, "\x1b") {
		t.Errorf("%s", text)
	}
	for arguments, want := range map[string]string{
		"--connect http://127.0.0.1:1 --connect http://127.0.0.1:2 --batch -n 1":             "check that the worker runs with --listen",
		"--connect http://a --connect http://b --token-file x --token-file y --token-file z": "--token-file must be given once, or 2 times",
		"--connect http://a --connect http://b --pid 3":                                      "several workers do not go with --pid",
		"--all -D /x":        "--all does not go with -D",
		"--all --sort color": "--sort must be one of",
		"--batch -n 1" + strings.Repeat(" --connect http://a", 65): "can be given 64 times",
	} {
		var stdout, stderr strings.Builder
		if status := Main("test", append([]string{"top"}, strings.Fields(arguments)...), &stdout, &stderr); status == exitOK ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, %s%s", arguments, status, stdout.String(), stderr.String())
		}
	}
}

// TestTopTokens: each worker gets its own token only.
func TestTopTokens(t *testing.T) {
	var given sync.Map
	var arguments []string
	for i := range 2 {
		worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given.Store(fmt.Sprint(i, r.Header.Get("Authorization")), true)
			http.Error(w, "no", http.StatusForbidden)
		}))
		t.Cleanup(worker.Close)
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, fmt.Appendf(nil, "token-of-worker-%d", i), 0o600); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, "--connect", worker.URL, "--token-file", file)
	}
	Main("test", append([]string{"top", "--batch", "-n", "1"}, arguments...), io.Discard, io.Discard)
	var seen []string
	given.Range(func(text, _ any) bool { seen = append(seen, text.(string)); return true })
	slices.Sort(seen)
	if !slices.Equal(seen, []string{"0Bearer token-of-worker-0", "1Bearer token-of-worker-1"}) {
		t.Errorf("tokens: %v", seen)
	}
}
