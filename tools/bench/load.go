package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// loadFigure is the share of a server's throughput that remains while all its backends are captured continuously.
type loadFigure struct {
	Tool   string  `json:"tool"`
	Absent string  `json:"absent,omitempty"`
	TPS    float64 `json:"tps"`              // median of the spans
	Loss   float64 `json:"loss_percent"`     // median of the spans
	Low    float64 `json:"loss_percent_low"` // of a turn
	High   float64 `json:"loss_percent_high"`
	Mean   float64 `json:"loss_percent_mean"`
	Error  float64 `json:"loss_percent_error"`  // the standard error of the mean
	Rate   float64 `json:"captures_per_second"` // of each backend, as reached
	Spans  int     `json:"spans"`

	tps, loss, rate []float64 // of the spans, the spans, the turns
	turns           []float64 // the mean loss of each turn
}

const (
	loadRate    = 100             // captures of each backend in a second that are tried
	loadScale   = 10              // of pgbench's tables: 1,000,000 accounts, all in memory
	loadPulses  = 10              // spans beside a tool in one turn
	loadWarmUp  = 2 * time.Second // of a pgbench
	loadNothing = "nothing"
)

// load measures pgbench's select-only throughput beside each tool, and without a tool before and after it,
// alternating every half a second. So changes over seconds do not count as the cost of a tool. In a round one pgbench
// runs all the time, and the tools take turns in random order. So differences between two runs of pgbench (the places
// of its tables and processes) do not count either. One of the tools does nothing: its apparent cost is the machine's
// noise.
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
	tools := loadTools(o, p)
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

// loadTurn is a tool's.
type loadTurn struct {
	tool  *loadTool
	spans []span // alternately without and with the tool; the last one is without it
}

// span is from one moment to another.
type span struct{ from, to time.Time }

// loadRound runs the tools in turns beside one pgbench.
func loadRound(ctx context.Context, o options, s *server, conn *pgx.Conn, path string, tools []*loadTool) error {
	turns := turnsOf(tools)
	const slowness = 3 // some tools take long to pause
	longest := loadWarmUp + slowness*(pulseSettles+(2*loadPulses+1)*o.Slice)*time.Duration(len(turns))
	bench, err := startPgbench(ctx, s, path, longest)
	if err != nil {
		return err
	}
	pids, err := pgbenchBackends(ctx, conn, runtime.NumCPU())
	if err == nil {
		err = sleep(ctx, loadWarmUp)
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
	for _, t := range turns {
		if err := t.count(done); err != nil {
			return err
		}
	}
	return nil
}

// turnsOf returns the turns of a round in random order.
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

// take lets the tool capture and pause.
func (t *loadTurn) take(ctx context.Context, slice time.Duration, pids []int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("throughput beside %s: %w", t.tool.Tool, err)
		}
	}()
	tool, err := t.tool.start(ctx, pids)
	if err != nil {
		return err
	}
	for range loadPulses {
		if err == nil {
			err = t.pass(ctx, slice, func() error { return nil })
		}
		if err == nil {
			err = tool.resume()
		}
		if err == nil {
			err = t.pass(ctx, slice, tool.pause)
		}
	}
	if err == nil {
		err = t.pass(ctx, slice, func() error { return nil })
	}
	rate, failed := tool.end()
	t.tool.rate = append(t.tool.rate, rate/float64(len(pids)))
	return errors.Join(err, failed)
}

// pass waits for the slice, plus the time that the tool needs to end.
func (t *loadTurn) pass(ctx context.Context, slice time.Duration, end func() error) error {
	from := time.Now()
	if err := sleep(ctx, slice); err != nil {
		return err
	}
	err := end()
	t.spans = append(t.spans, span{from, time.Now()})
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// count computes the cost of each span beside the tool, compared with the spans before and after it. The standard
// error is the standard error of the turns' means, because neighbouring spans are not independent.
func (t *loadTurn) count(done *transactions) error {
	tps := make([]float64, len(t.spans))
	for i, s := range t.spans {
		var err error
		if tps[i], err = done.perSecond(s); err != nil {
			return err
		}
	}
	var beside, losses []float64
	for i := 1; i < len(tps)-1; i += 2 {
		beside = append(beside, tps[i])
		losses = append(losses, 100*(1-tps[i]/((tps[i-1]+tps[i+1])/2)))
	}
	loss, _ := mean(losses)
	t.tool.turns = append(t.tool.turns, loss)
	t.tool.tps = append(t.tool.tps, beside...)
	t.tool.loss = append(t.tool.loss, losses...)
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

// pgbenchBackends waits until all of pgbench's backends are working.
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
	t.Loss, t.Spans = percentile(t.loss, 50), len(t.loss)
	t.Mean, t.Error = mean(t.turns)
	t.Low, t.High = percentile(t.turns, 0), percentile(t.turns, 100)
}
