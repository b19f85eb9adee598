package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pgbench is a running pgbench: select-only, a client for each processor, logging the time of each transaction.
type pgbench struct {
	cmd   *exec.Cmd
	said  bytes.Buffer
	log   string // how the names of its logs begin
	ended chan error
}

// startPgbench starts a pgbench that runs until its end is called, or until the maximum time is over.
func startPgbench(ctx context.Context, s *server, path string, most time.Duration) (*pgbench, error) {
	clients := strconv.Itoa(runtime.NumCPU())
	b := &pgbench{log: filepath.Join(s.root, "transactions"), ended: make(chan error, 1)}
	b.cmd = s.commandAt(ctx, path, "-h", s.root, "-p", "5432", "-U", "postgres", "-n", "-S", "-M", "prepared",
		"-c", clients, "-j", clients, "-T", strconv.Itoa(int(most.Seconds())+1), "-l", "--log-prefix", b.log, "postgres")
	b.cmd.Stdout, b.cmd.Stderr = &b.said, &b.said
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("pgbench: %w", err)
	}
	go func() { b.ended <- b.cmd.Wait() }()
	return b, nil
}

// logDelay limits the time that pgbench may take to write its log.
const logDelay = 10 * time.Second

// end ends pgbench when its logs reach a moment, and returns its transactions.
func (b *pgbench) end(until time.Time) (*transactions, error) {
	logs := func() []string {
		names, _ := filepath.Glob(b.log + ".*")
		return names
	}
	defer func() {
		for _, name := range logs() {
			_ = os.Remove(name)
		}
	}()
	// Data in its buffers is lost when it ends.
	for deadline := until.Add(logDelay); !reach(logs(), until) && time.Now().Before(deadline); {
		select {
		case err := <-b.ended:
			return nil, fmt.Errorf("pgbench ended early: %w: %q", err, b.said.String())
		case <-time.After(logDelay / 200):
		}
	}
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	<-b.ended
	t := &transactions{in: map[int64]int{}}
	for _, name := range logs() {
		if err := t.read(name); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// reach reports whether all logs contain entries later than a moment.
func reach(logs []string, moment time.Time) bool {
	for _, name := range logs {
		info, err := os.Stat(name)
		if err != nil || !info.ModTime().After(moment.Add(logDelay/20)) {
			return false
		}
	}
	return len(logs) > 0
}

// transactions are the numbers of transactions that ended in each millisecond since 1970.
type transactions struct {
	in   map[int64]int
	last int64 // millisecond that a log is known for
}

// read adds a log of pgbench, except its last line, which may be truncated without looking so. A line is client,
// number, duration, script, and the end of the transaction as seconds and microseconds.
func (t *transactions) read(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("pgbench's log: %w", err)
	}
	defer func() { _ = file.Close() }()
	last, line := int64(0), ""
	lines := bufio.NewScanner(file)
	for count := 0; lines.Scan(); count++ {
		whole := line
		if line = lines.Text(); count == 0 {
			continue
		}
		fields := strings.Fields(whole)
		if len(fields) != 6 {
			return fmt.Errorf("%s, line %d: %q", name, count, whole)
		}
		seconds, err := strconv.ParseInt(fields[4], 10, 64)
		micros, failed := strconv.ParseInt(fields[5], 10, 64)
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("%s, line %d: %w", name, count, err)
		}
		last = seconds*1000 + micros/1000
		t.in[last]++
	}
	if last == 0 {
		return fmt.Errorf("%s: no transaction", name)
	}
	if t.last == 0 || last < t.last {
		t.last = last
	}
	return lines.Err()
}

// perSecond is the throughput in a span.
func (t *transactions) perSecond(s span) (float64, error) {
	from, to := s.from.UnixMilli(), s.to.UnixMilli()
	if to > t.last {
		return 0, fmt.Errorf("pgbench's log ends at %v, before what was to be measured, until %v",
			time.UnixMilli(t.last), s.to)
	}
	total := 0
	for at := from; at < to; at++ {
		total += t.in[at]
	}
	return float64(total) / float64(to-from) * 1000, nil
}
