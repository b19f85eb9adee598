package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
)

// pgbench is one that runs: select-only, a client for each processor, telling its throughput every second.
type pgbench struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stdout bytes.Buffer
	said   []string // what it wrote that is no progress
}

var progressPattern = regexp.MustCompile(`^progress: [0-9.]+ s, ([0-9.]+) tps`)

// startPgbench starts one that runs for so many seconds.
func startPgbench(ctx context.Context, s *server, path string, seconds int) (*pgbench, error) {
	clients := strconv.Itoa(runtime.NumCPU())
	b := &pgbench{cmd: s.commandAt(ctx, path, "-h", s.root, "-p", "5432", "-U", "postgres", "-n", "-S", "-M", "prepared",
		"-P", "1", "-c", clients, "-j", clients, "-T", strconv.Itoa(seconds), "postgres")}
	b.cmd.Stdout = &b.stdout
	stderr, err := b.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("pgbench: %w", err)
	}
	b.lines = bufio.NewScanner(stderr)
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("pgbench: %w", err)
	}
	return b, nil
}

// second waits for the end of the second that runs and returns its transactions.
func (b *pgbench) second() (tps float64, err error) {
	for b.lines.Scan() {
		if found := progressPattern.FindSubmatch(b.lines.Bytes()); found != nil {
			return strconv.ParseFloat(string(found[1]), 64)
		}
		b.said = append(b.said, b.lines.Text())
	}
	return 0, fmt.Errorf("pgbench ended early: %q", b.said)
}

// end waits until it has ended.
func (b *pgbench) end() error {
	for b.lines.Scan() {
		b.said = append(b.said, b.lines.Text())
	}
	if err := b.cmd.Wait(); err != nil {
		return fmt.Errorf("pgbench: %w: %q", err, b.said)
	}
	return nil
}
