package serving

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

var program string

func TestMain(m *testing.M) { os.Exit(pgtest.RunWithProgram(m, &program)) }

// worker is a process of the program that serves a server.
type worker struct {
	*exec.Cmd

	t       *testing.T
	log     string // path
	address string // of its listener
	done    chan error
}

// launch starts a worker with arguments. With root it keeps what root gives it.
func launch(t *testing.T, s *pgtest.Server, root bool, arguments ...string) *worker {
	t.Helper()
	dsn := s.DSN(s.User, "postgres")
	if len(arguments) > 0 && strings.HasPrefix(arguments[len(arguments)-1], "host=") {
		dsn, arguments = arguments[len(arguments)-1], arguments[:len(arguments)-1]
	}
	all := append([]string{"worker", "-D", s.DataDir, dsn}, arguments...)
	command := exec.Command(program, all...)
	if !root {
		command = s.AsServerUser(command)
	}
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	w := &worker{Cmd: command, t: t, log: filepath.Join(t.TempDir(), "log"), done: make(chan error, 1)}
	log, err := os.Create(w.log)
	if err != nil {
		t.Fatal(err)
	}
	w.Stdout, w.Stderr = log, log
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	go func() { w.done <- w.Wait() }()
	t.Cleanup(func() {
		_ = w.Process.Signal(syscall.SIGTERM)
		<-w.done
		w.done <- nil
		if t.Failed() {
			t.Logf("the worker's log:\n%s", w.text())
		}
	})
	return w
}

func (w *worker) text() string {
	data, err := os.ReadFile(w.log)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// saying waits for a line of the log.
func (w *worker) saying(pattern string) []string {
	w.t.Helper()
	var found []string
	expression := regexp.MustCompile(pattern)
	pgtest.Wait(w.t, "the log has "+pattern, func() bool {
		select {
		case err := <-w.done:
			w.done <- err
			w.t.Fatalf("the worker ended: %v", err)
		default:
		}
		found = expression.FindStringSubmatch(w.text())
		return found != nil
	})
	return found
}

// serve starts a worker that listens on loopback, and waits until it serves.
func serve(t *testing.T, s *pgtest.Server, root bool, arguments ...string) *worker {
	t.Helper()
	w := launch(t, s, root, append([]string{"--listen", "127.0.0.1:0"}, arguments...)...)
	w.saying(`"ready"`)
	w.address = w.saying(`"address":"(127[^"]*)"`)[1]
	return w
}

// get returns the answer to a request.
func get(ctx context.Context, url string) (status int, body string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(data), err
}

// metric returns the value of a metric with its labels; false if it is absent.
func (w *worker) metric(name string) (float64, bool) {
	w.t.Helper()
	status, body, err := get(w.t.Context(), "http://"+w.address+"/metrics")
	if err != nil || status != http.StatusOK {
		w.t.Fatalf("%d, %v: %s", status, err, body)
	}
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "pg_stat_backtrace_"+name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				w.t.Fatal(err)
			}
			return value, true
		}
	}
	return 0, false
}

// busy runs queries that use a processor until the test ends.
func busy(t *testing.T, s *pgtest.Server) (pid int) {
	t.Helper()
	conn := s.Connect(t, s.User, "postgres")
	pid = int(conn.PgConn().PID())
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = conn.PgConn().Exec(ctx, "SELECT count(*) FROM generate_series(1, 300000) i WHERE sqrt(i) > 7").Close()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return pid
}

// startProgram starts another program, which ends with the test.
func startProgram(t *testing.T, name string, arguments ...string) {
	t.Helper()
	command := exec.Command(name, arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
}

// exitStatus returns how the program ends with arguments that it must refuse.
func exitStatus(t *testing.T, arguments ...string) (status int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	out, err := command.CombinedOutput()
	if err == nil {
		t.Fatalf("%v: no error", arguments)
	}
	return command.ProcessState.ExitCode(), fmt.Sprintf("%s%v", out, err)
}
