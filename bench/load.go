package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	TPS    float64 `json:"tps"`              // median of the turns
	Loss   float64 `json:"loss_percent"`     // median of the turns, each against the time before and behind it
	Low    float64 `json:"loss_percent_low"` // of a turn
	High   float64 `json:"loss_percent_high"`
	Mean   float64 `json:"loss_percent_mean"`
	Error  float64 `json:"loss_percent_error"`  // the standard error of the mean
	Rate   float64 `json:"captures_per_second"` // of each backend, as reached
	Turns  int     `json:"turns"`

	tps, loss, rate []float64
}

const (
	loadRate  = 100 // captures of each backend in a second that are tried
	loadScale = 10  // of pgbench's tables: 1,000,000 accounts, all in memory
	// After this time a tool has begun, and nothing is left of what one did that has ended.
	loadSettles = 500 * time.Millisecond
	loadNothing = "nothing"
)

// capturing captures the processes at loadRate until ctx ends, and returns how often it did that in a second.
type capturing func(ctx context.Context, pids []int) (rate float64, err error)

// load measures pgbench's select-only throughput beside each tool, and without one before and behind it: what changes
// in some seconds is not taken for what a tool costs. In a round one pgbench runs all the time, and the tools take
// turns in an order that chance makes: neither is what changes between two of its runs (where its tables and
// processes lie). One of the tools is none: what it seems to cost is what the machine makes of nothing.
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
	for _, t := range tools {
		r.Load = append(r.Load, &t.loadFigure)
	}
	for round := range o.Rounds {
		progressf("throughput, round %d of %d", round+1, o.Rounds)
		if err := loadRound(ctx, o, s, conn, path, tools); err != nil {
			return err
		}
	}
	for _, t := range tools {
		t.finish()
	}
	return nil
}

// loadTurn is a tool's, and the time without one behind it.
type loadTurn struct {
	tool          *loadTool
	beside, after span
}

// span is from one moment to another.
type span struct{ from, to time.Time }

// loadRound gives the tools their turns beside one pgbench.
func loadRound(ctx context.Context, o options, s *server, conn *pgx.Conn, path string, tools []*loadTool) error {
	turns := turnsOf(tools)
	longest := 4 * (loadSettles + o.Slice) * time.Duration(len(turns)+1) // the slow ones take long to end
	bench, err := startPgbench(ctx, s, path, longest)
	if err != nil {
		return err
	}
	pids, err := pgbenchBackends(ctx, conn, runtime.NumCPU())
	var first span
	if err == nil {
		first, err = pass(ctx, o.Slice)
	}
	for i := range turns {
		if err == nil {
			err = turns[i].take(ctx, o.Slice, pids)
		}
	}
	done, failed := bench.end(time.Now())
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	before, err := done.perSecond(first)
	for _, t := range turns {
		if err == nil {
			before, err = t.count(done, before)
		}
	}
	return err
}

// turnsOf is the turns of a round, in an order that chance makes.
func turnsOf(tools []*loadTool) []loadTurn {
	var turns []loadTurn
	for _, tool := range tools {
		if tool.Absent == "" {
			turns = append(turns, slices.Repeat([]loadTurn{{tool: tool}}, tool.inRound)...)
		}
	}
	rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	return turns
}

// pass lets so much time pass, after what was before it is forgotten.
func pass(ctx context.Context, slice time.Duration) (span, error) {
	from := time.Now().Add(loadSettles)
	to := from.Add(slice)
	select {
	case <-ctx.Done():
		return span{}, ctx.Err()
	case <-time.After(time.Until(to)):
		return span{from, to}, nil
	}
}

// take lets the tool capture while so much time passes, and then so much pass without one.
func (t *loadTurn) take(ctx context.Context, slice time.Duration, pids []int) error {
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	var rate float64
	var failed error
	if t.tool.run != nil {
		group.Go(func() { rate, failed = t.tool.run(during, pids) })
	}
	var err error
	t.beside, err = pass(ctx, slice)
	cancel()
	group.Wait()
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("throughput beside %s: %w", t.tool.Tool, err)
	}
	t.tool.rate = append(t.tool.rate, rate/float64(len(pids)))
	t.after, err = pass(ctx, slice)
	return err
}

// count adds what the turn has cost, and returns the throughput without a tool behind it.
func (t *loadTurn) count(done *transactions, before float64) (after float64, err error) {
	beside, err := done.perSecond(t.beside)
	if err != nil {
		return 0, err
	}
	if after, err = done.perSecond(t.after); err != nil {
		return 0, err
	}
	t.tool.tps = append(t.tool.tps, beside)
	t.tool.loss = append(t.tool.loss, 100*(1-beside/((before+after)/2)))
	return after, nil
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

// loadTool is one of those that capture meanwhile; that which does nothing has no run.
type loadTool struct {
	loadFigure

	inRound int // turns: what costs little needs more of them to be told from nothing
	run     capturing
}

func loadTools(ctx context.Context, o options, p programs) []*loadTool {
	tools := []*loadTool{
		{loadFigure: loadFigure{Tool: loadNothing}, inRound: 4},
		{loadFigure: loadFigure{Tool: ours + " profile", Absent: withoutProfile(ctx, o)}, inRound: 8,
			run: ofOurs(o, "profile", "--stats", "--duration", "1h", "--rate", strconv.Itoa(loadRate))},
		{loadFigure: loadFigure{Tool: ours}, inRound: 4, run: ofOurs(o, "capture", "--stats", "--repeat", "1000000",
			"--interval", (time.Second / loadRate).String())},
		{loadFigure: loadFigure{Tool: floor}, inRound: 2, run: onAndOn(p, "floor")},
		{loadFigure: loadFigure{Tool: "libunwind", Absent: p.absent["libunwind"]}, inRound: 1, run: onAndOn(p, "libunwind")},
	}
	stack, err := exec.LookPath("eu-stack")
	tool := &loadTool{loadFigure: loadFigure{Tool: "eu-stack"}, inRound: 1}
	if err != nil {
		tool.Absent = "not installed"
	} else {
		tool.run = func(ctx context.Context, pids []int) (float64, error) {
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
	return func(ctx context.Context, pids []int) (float64, error) {
		all := slices.Clone(arguments)
		for _, pid := range pids {
			all = append(all, strconv.Itoa(pid))
		}
		c := command(ctx, o.Binary, all...)
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // it tells its figures then
		began := time.Now()
		t, err := decodeAnyway(c)
		if t.Count == 0 {
			return 0, err
		}
		if t.Seconds > 0 {
			return float64(t.Count) / t.Seconds, nil
		}
		return float64(t.Count) / time.Since(began).Seconds(), nil
	}
}

// onAndOn captures with one of the C programs, a quarter of a second's worth at a time, for its count.
func onAndOn(p programs, name string) capturing {
	return func(ctx context.Context, pids []int) (float64, error) {
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
) (float64, error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	total, began := 0, time.Now()
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
	return float64(total) / time.Since(began).Seconds(), nil
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
	t.Turns = len(t.loss)
	t.Mean, t.Error = mean(t.loss)
	t.Loss, t.Low, t.High = percentile(t.loss, 50), percentile(t.loss, 0), percentile(t.loss, 100)
}
