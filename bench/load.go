package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// loadFigure is how much of its throughput a server keeps while all its backends are captured again and again.
type loadFigure struct {
	Tool   string  `json:"tool"`
	Absent string  `json:"absent,omitempty"`
	TPS    float64 `json:"tps"`              // median of the slices
	Loss   float64 `json:"loss_percent"`     // median over the rounds, against the slice without a tool of the same round
	Low    float64 `json:"loss_percent_low"` // over the rounds
	High   float64 `json:"loss_percent_high"`
	Rate   float64 `json:"captures_per_second"` // of each backend, as reached

	tps, loss, rate []float64
}

const (
	loadRate    = 100 // captures of each backend in a second that are tried
	loadScale   = 10  // of pgbench's tables: 1,000,000 accounts, all in memory
	loadSettle  = 500 * time.Millisecond
	loadControl = "(none)"
)

// capturing captures the processes at loadRate until ctx ends, and returns how often it did that.
type capturing func(ctx context.Context, pids []int) (captures int, err error)

// load measures pgbench's select-only throughput without a tool and beside each of them, in slices that take turns.
func (r *report) load(ctx context.Context, o options, p programs, s *server) error {
	pgbench, err := findPgbench(s.binDir)
	if err != nil {
		r.notef("no throughput was measured: %v", err)
		return nil
	}
	_, err = output(s.commandAt(ctx, pgbench, "-h", s.root, "-p", "5432", "-U", "postgres", "-i", "-q", "-n", "-s",
		strconv.Itoa(loadScale), "postgres"))
	if err != nil {
		return fmt.Errorf("filling pgbench's tables: %w", err)
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tools := loadTools(o, p)
	for i := range tools {
		r.Load = append(r.Load, &tools[i].loadFigure)
	}
	for round := range o.Rounds {
		progressf("throughput, round %d of %d", round+1, o.Rounds)
		for i := range tools {
			tool := &tools[(i+round)%len(tools)]
			if tool.Absent != "" {
				continue
			}
			if err := tool.slice(ctx, o, s, conn, pgbench); err != nil {
				return fmt.Errorf("throughput beside %s: %w", tool.Tool, err)
			}
		}
	}
	for i := range tools {
		tools[i].finish(&tools[0])
	}
	return nil
}

func findPgbench(binDir string) (string, error) {
	if path := filepath.Join(binDir, "pgbench"); exec.Command(path, "--version").Run() == nil {
		return path, nil
	}
	path, err := exec.LookPath("pgbench")
	if err != nil {
		return "", fmt.Errorf("pgbench: %w", err)
	}
	return path, nil
}

// loadTool is one of those that capture meanwhile; the first captures nothing.
type loadTool struct {
	loadFigure

	run capturing
}

func loadTools(o options, p programs) []loadTool {
	tools := []loadTool{
		{loadFigure: loadFigure{Tool: loadControl}},
		{loadFigure: loadFigure{Tool: ours}, run: func(ctx context.Context, pids []int) (int, error) {
			repeat := int((o.Slice - loadSettle) / (time.Second / loadRate))
			arguments := []string{"capture", "--repeat", strconv.Itoa(repeat), "--interval", "10ms", "--stats"}
			for _, pid := range pids {
				arguments = append(arguments, strconv.Itoa(pid))
			}
			return oursUntil(ctx, o.Binary, arguments)
		}},
		{loadFigure: loadFigure{Tool: "libunwind", Absent: p.absent["libunwind"]},
			run: func(ctx context.Context, pids []int) (int, error) {
				return again(ctx, pids, func(ctx context.Context, pid int) (int, error) {
					// a second's worth at a time, for its count
					t, err := decode(command(ctx, p.path["libunwind"], strconv.Itoa(loadRate/4),
						strconv.Itoa(1_000_000/loadRate), strconv.Itoa(pid)))
					return t.Count, err
				}, 0)
			}},
	}
	stack, err := exec.LookPath("eu-stack")
	tool := loadTool{loadFigure: loadFigure{Tool: "eu-stack"}}
	if err != nil {
		tool.Absent = "not installed"
	} else {
		tool.run = func(ctx context.Context, pids []int) (int, error) {
			return again(ctx, pids, func(ctx context.Context, pid int) (int, error) {
				if _, err := output(command(ctx, stack, "-p", strconv.Itoa(pid))); err != nil && !exited(err, 1) {
					return 0, err
				}
				return 1, nil
			}, time.Second/loadRate)
		}
	}
	return append(tools, tool)
}

// oursUntil runs our program on all backends. It ends by itself, at the latest when they do, which it says as a
// failure.
func oursUntil(ctx context.Context, binary string, arguments []string) (int, error) {
	t, err := decodeAnyway(command(context.WithoutCancel(ctx), binary, arguments...))
	if t.Count == 0 {
		return 0, err
	}
	return t.Count, nil
}

// again captures each process by a goroutine of its own, once in an interval if the tool is as fast as that.
func again(ctx context.Context, pids []int, capture func(context.Context, int) (int, error), interval time.Duration,
) (int, error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	total := 0
	var failed error
	for _, pid := range pids {
		group.Go(func() {
			for ctx.Err() == nil {
				next := time.Now().Add(interval)
				n, err := capture(ctx, pid)
				mu.Lock()
				total += n
				if err != nil && total == 0 {
					failed = err
				}
				mu.Unlock()
				if err != nil {
					return // the backend has ended
				}
				time.Sleep(time.Until(next))
			}
		})
	}
	group.Wait()
	if total == 0 && failed != nil {
		return 0, failed
	}
	return total, nil
}

var tpsPattern = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// slice runs pgbench once, with the tool beside it.
func (t *loadTool) slice(ctx context.Context, o options, s *server, conn *pgx.Conn, pgbench string) error {
	clients := strconv.Itoa(runtime.NumCPU())
	seconds := strconv.Itoa(int(o.Slice.Seconds()))
	bench := s.commandAt(ctx, pgbench, "-h", s.root, "-p", "5432", "-U", "postgres", "-n", "-S", "-M", "prepared",
		"-c", clients, "-j", clients, "-T", seconds, "postgres")
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := output(bench)
		done <- result{out, err}
	}()
	captured := 0
	capturingFor := o.Slice - loadSettle
	if t.run != nil {
		pids, err := pgbenchBackends(ctx, conn, runtime.NumCPU())
		if err == nil {
			during, cancel := context.WithTimeout(ctx, capturingFor)
			captured, err = t.run(during, pids)
			cancel()
		}
		if err != nil {
			return errors.Join(err, (<-done).err)
		}
	}
	r := <-done
	if r.err != nil {
		return r.err
	}
	found := tpsPattern.FindSubmatch(r.out)
	if found == nil {
		return fmt.Errorf("pgbench printed %q", r.out)
	}
	tps, err := strconv.ParseFloat(string(found[1]), 64)
	t.tps = append(t.tps, tps)
	t.rate = append(t.rate, float64(captured)/float64(runtime.NumCPU())/capturingFor.Seconds())
	return err
}

// pgbenchBackends waits until all of pgbench's backends are at work.
func pgbenchBackends(ctx context.Context, conn *pgx.Conn, wanted int) ([]int, error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		rows, err := conn.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'")
		if err != nil {
			return nil, err
		}
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil || len(pids) == wanted {
			return pids, err
		}
	}
	return nil, errors.New("pgbench has not the backends that were asked for")
}

// finish makes the figures: each slice against the one without a tool of the same round.
func (t *loadTool) finish(control *loadTool) {
	for i, tps := range t.tps {
		t.loss = append(t.loss, 100*(1-tps/control.tps[i]))
	}
	t.TPS, t.Rate = percentile(append([]float64(nil), t.tps...), 50), percentile(t.rate, 50)
	t.Loss, t.Low, t.High = percentile(t.loss, 50), percentile(t.loss, 0), percentile(t.loss, 100)
}
