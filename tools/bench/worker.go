package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	readyTimeout = 30 * time.Second
	workerStarts = 5
)

// worker is a running `pg_stat_backtrace worker`.
type worker struct {
	command *exec.Cmd
	ready   time.Duration // from its start to READY=1
}

// workerFigures are the costs of the worker. Memory is in MiB.
type workerFigures struct {
	ReadyMS   figure  `json:"ready_ms"` // start to READY=1
	StartRSS  float64 `json:"rss_start_mb"`
	LoadedRSS float64 `json:"rss_after_calls_mb"`
	PeakRSS   float64 `json:"rss_peak_mb"`
}

// startWorker starts a worker for the server and waits until it says READY=1 as sd_notify(3) defines it.
func startWorker(ctx context.Context, binary string, s *server) (*worker, error) {
	address := &net.UnixAddr{Net: "unixgram", Name: filepath.Join(s.root, "notify")}
	socket, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		return nil, fmt.Errorf("socket for the worker's word: %w", err)
	}
	defer func() { _ = socket.Close(); _ = os.Remove(address.Name) }()
	if err := os.Chmod(address.Name, 0o777); err != nil {
		return nil, fmt.Errorf("socket for the worker's word: %w", err)
	}
	w := &worker{command: command(ctx, binary, "worker", s.dsn())}
	w.command.Env = append(w.command.Env, "NOTIFY_SOCKET="+address.Name)
	w.command.Cancel = func() error { return w.command.Process.Signal(syscall.SIGTERM) }
	var log bytes.Buffer
	w.command.Stderr = &log
	start := time.Now()
	if err := w.command.Start(); err != nil {
		return nil, fmt.Errorf("starting the worker: %w", err)
	}
	if err := waitReady(socket); err != nil {
		stopped := w.stop()
		return nil, fmt.Errorf("worker: %w\n%s", errors.Join(err, stopped), log.String())
	}
	w.ready = time.Since(start)
	return w, nil
}

func waitReady(socket *net.UnixConn) error {
	if err := socket.SetReadDeadline(time.Now().Add(readyTimeout)); err != nil {
		return err
	}
	message := make([]byte, 4096)
	for {
		n, err := socket.Read(message)
		if err != nil {
			return fmt.Errorf("waiting for READY=1: %w", err)
		}
		for line := range strings.Lines(string(message[:n])) {
			if strings.TrimSpace(line) == "READY=1" {
				return nil
			}
		}
	}
}

func (w *worker) stop() error {
	if err := w.command.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("ending the worker: %w", err)
	}
	if err := w.command.Wait(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// memory reads a value in kB from /proc/PID/status, such as VmRSS or VmHWM. It returns MiB, or 0 if there is no such
// line.
func (w *worker) memory(line string) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.command.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "\n"+line+":")
	rest, _, _ = strings.Cut(rest, "kB")
	kb, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
	if err != nil {
		return 0
	}
	return kb / 1024
}

// startWorkers starts the worker several times to measure the time, and leaves the last one running.
func startWorkers(ctx context.Context, binary string, s *server) (*worker, figure, error) {
	var ready []summary
	for {
		w, err := startWorker(ctx, binary, s)
		if err != nil {
			return nil, figure{}, err
		}
		ms := float64(w.ready.Microseconds()) / 1000
		ready = append(ready, summary{ms, ms, ms})
		if len(ready) == workerStarts {
			return w, combine(ready), nil
		}
		if err := w.stop(); err != nil {
			return nil, figure{}, err
		}
	}
}
