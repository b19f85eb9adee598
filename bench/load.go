package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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
	Loss   float64 `json:"loss_percent"`     // median of the slices, each against those without a tool around it
	Low    float64 `json:"loss_percent_low"` // of a slice
	High   float64 `json:"loss_percent_high"`
	Mean   float64 `json:"loss_percent_mean"`
	Error  float64 `json:"loss_percent_error"`  // the standard error of the mean
	Rate   float64 `json:"captures_per_second"` // of each backend, as reached

	tps, loss, rate []float64
}

const (
	loadRate    = 100 // captures of each backend in a second that are tried
	loadScale   = 10  // of pgbench's tables: 1,000,000 accounts, all in memory
	loadTurns   = 3   // of each tool in a round
	loadControl = "(none)"
)

// capturing captures the processes at loadRate until ctx ends, and returns how often it did that.
type capturing func(ctx context.Context, pids []int) (captures int, err error)

// load measures pgbench's select-only throughput beside each tool, and without one before and after it: what changes in
// some seconds is not taken for what a tool costs. In a round one pgbench runs all the time, and the tools take turns:
// neither is what changes between two of its runs (where its tables and processes lie).
func (r *report) load(ctx context.Context, o options, p programs, s *server) error {
	path, err := findPgbench(s.binDir)
	if err != nil {
		r.notef("no throughput was measured: %v", err)
		return nil
	}
	_, err = output(s.commandAt(ctx, path, "-h", s.root, "-p", "5432", "-U", "postgres", "-i", "-q", "-n", "-s",
		strconv.Itoa(loadScale), "postgres"))
	if err != nil {
		return fmt.Errorf("filling pgbench's tables: %w", err)
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tools := loadTools(ctx, o, p)
	for i := range tools {
		r.Load = append(r.Load, &tools[i].loadFigure)
	}
	for round := range o.Rounds {
		progressf("throughput, round %d of %d", round+1, o.Rounds)
		if err := loadRound(ctx, o, s, conn, path, tools, round); err != nil {
			return err
		}
	}
	for i := range tools {
		tools[i].finish()
	}
	return nil
}

func loadRound(ctx context.Context, o options, s *server, conn *pgx.Conn, path string, tools []loadTool, round int,
) error {
	control, others := &tools[0], tools[1:]
	seconds := int(o.Slice.Seconds()) + 1
	bench, err := startPgbench(ctx, s, path, seconds*(2*loadTurns*len(others)+1)+3) // it does not tell of its last one
	if err != nil {
		return err
	}
	pids, err := pgbenchBackends(ctx, conn, runtime.NumCPU())
	if err == nil {
		_, err = bench.second() // its first is not like the others
	}
	var before, beside, after float64
	if err == nil {
		before, err = control.slice(ctx, bench, pids, seconds)
	}
	for i := range loadTurns * len(others) {
		tool := &others[(i+round)%len(others)]
		if err != nil || tool.Absent != "" {
			continue
		}
		if beside, err = tool.slice(ctx, bench, pids, seconds); err != nil {
			err = fmt.Errorf("throughput beside %s: %w", tool.Tool, err)
		} else if after, err = control.slice(ctx, bench, pids, seconds); err == nil {
			tool.loss = append(tool.loss, 100*(1-beside/((before+after)/2)))
			before = after
		}
	}
	return errors.Join(err, bench.end())
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

func loadTools(ctx context.Context, o options, p programs) []loadTool {
	tools := []loadTool{
		{loadFigure: loadFigure{Tool: loadControl}},
		{loadFigure: loadFigure{Tool: ours}, run: ofOurs(o, "capture", "--stats", "--repeat", "1000000",
			"--interval", (time.Second / loadRate).String())},
		{loadFigure: loadFigure{Tool: ours + " profile", Absent: withoutProfile(ctx, o)}, run: ofOurs(o, "profile", "--stats",
			"--duration", "1h", "--rate", strconv.Itoa(loadRate))},
		{loadFigure: loadFigure{Tool: floor}, run: onAndOn(p, "floor")},
		{loadFigure: loadFigure{Tool: "libunwind", Absent: p.absent["libunwind"]}, run: onAndOn(p, "libunwind")},
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

// withoutProfile says why processes cannot be sampled here, if they cannot.
func withoutProfile(ctx context.Context, o options) string {
	c := command(ctx, o.Binary, "profile", "--stats", "--duration", "100ms", strconv.Itoa(os.Getpid()))
	if _, err := output(c); err != nil {
		return err.Error()
	}
	return ""
}

// ofOurs captures with one of our commands, which is interrupted in the end.
func ofOurs(o options, arguments ...string) capturing {
	return func(ctx context.Context, pids []int) (int, error) {
		all := slices.Clone(arguments)
		for _, pid := range pids {
			all = append(all, strconv.Itoa(pid))
		}
		c := command(ctx, o.Binary, all...)
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // it tells its figures then
		t, err := decodeAnyway(c)
		if t.Count == 0 {
			return 0, err
		}
		return t.Count, nil
	}
}

// onAndOn captures with one of the C programs, a quarter of a second's worth at a time, for its count.
func onAndOn(p programs, name string) capturing {
	return func(ctx context.Context, pids []int) (int, error) {
		return again(ctx, pids, func(ctx context.Context, pid int) (int, error) {
			t, err := decode(command(ctx, p.path[name], strconv.Itoa(loadRate/4), strconv.Itoa(1_000_000/loadRate),
				strconv.Itoa(pid)))
			return t.Count, err
		}, 0)
	}
}

// again captures each process by a goroutine of its own, once in an interval if the tool is as fast as that. A capture
// that has begun is let end: a tool that is killed then can leave its target stopped.
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
				n, err := capture(context.WithoutCancel(ctx), pid)
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

// slice lets the tool capture for so many of pgbench's seconds, and returns the throughput of all but the first, in
// which the tool starts.
func (t *loadTool) slice(ctx context.Context, bench *pgbench, pids []int, seconds int) (float64, error) {
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	var captured int
	var failed error
	if t.run != nil {
		group.Go(func() { captured, failed = t.run(during, pids) })
	}
	total, began := 0.0, time.Now()
	for second := range seconds {
		tps, err := bench.second()
		if err != nil {
			cancel()
			group.Wait()
			return 0, errors.Join(err, failed)
		}
		if second > 0 {
			total += tps
		}
	}
	cancel()
	group.Wait()
	tps := total / float64(seconds-1)
	t.tps = append(t.tps, tps)
	t.rate = append(t.rate, float64(captured)/float64(len(pids))/time.Since(began).Seconds())
	return tps, failed
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

// finish makes the figures.
func (t *loadTool) finish() {
	t.TPS, t.Rate = percentile(t.tps, 50), percentile(t.rate, 50)
	t.Mean, t.Error = mean(t.loss)
	t.Loss, t.Low, t.High = percentile(t.loss, 50), percentile(t.loss, 0), percentile(t.loss, 100)
}
