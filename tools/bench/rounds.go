package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// result is everything that one tool measured at one target.
type result struct {
	Tool    string            `json:"tool"`
	Target  string            `json:"target"`
	Absent  string            `json:"absent,omitempty"` // why there is nothing
	Count   int               `json:"count"`            // captures in all rounds
	Depth   int               `json:"depth,omitempty"`
	Pause   figure            `json:"pause_us"`
	Window  *figure           `json:"window_us,omitempty"`
	Seen    *figure           `json:"seen_us,omitempty"` // the pause as the target saw it itself
	Call    figure            `json:"call_us"`
	CallIs  string            `json:"call_is"`
	Parts   map[string]figure `json:"parts_us,omitempty"`
	Against map[string]string `json:"pause_against_ours,omitempty"`

	pause, window, seen, call []summary
	parts                     map[string][]summary
}

// rounds gives every tool a turn at every target, in every round. The order of the tools rotates.
func (r *report) rounds(ctx context.Context, o options, tools []tool, targets *targets) error {
	if len(targets.List) == 0 || len(tools) == 0 {
		return errors.New("nothing to measure")
	}
	results := map[[2]string]*result{}
	for _, target := range targets.List {
		for _, tool := range tools {
			one := &result{Tool: tool.Name, Target: target.Name, Absent: tool.Absent, CallIs: tool.Call,
				parts: map[string][]summary{}}
			results[[2]string{tool.Name, target.Name}] = one
			r.Results = append(r.Results, one)
		}
	}
	for round := range o.Rounds {
		progressf("round %d of %d", round+1, o.Rounds)
		for _, target := range targets.List {
			target.wake()
			for i := range tools {
				tool := tools[(i+round)%len(tools)]
				if tool.Absent != "" {
					continue
				}
				if err := results[[2]string{tool.Name, target.Name}].turn(ctx, tool, target); err != nil {
					return fmt.Errorf("%s at the %s: %w", tool.Name, target.Name, err)
				}
			}
			if err := r.noise(ctx, target); err != nil {
				return err
			}
			target.rest()
		}
	}
	for _, one := range r.Results {
		one.combine()
	}
	return r.depth(ctx, o, targets)
}

// turn is one turn of tool at target.
func (r *result) turn(ctx context.Context, tool tool, target target) error {
	var before uint64
	if target.gaps != nil {
		before = target.gaps.count()
	}
	t, err := tool.run(ctx, target.PID)
	if err != nil {
		return err
	}
	r.Count += t.Count
	r.Depth = max(r.Depth, t.Depth)
	r.call = append(r.call, t.Call)
	if t.Pause.P50 > 0 {
		r.pause = append(r.pause, t.Pause)
	}
	if t.Window != nil {
		r.window = append(r.window, *t.Window)
	}
	for name, part := range t.Parts {
		r.parts[name] = append(r.parts[name], part)
	}
	if target.gaps == nil {
		return nil
	}
	// as many gaps as there were captures, the longest: the rest is the machine's noise
	lengths, err := target.gaps.since(before)
	if err == nil && len(lengths) >= t.Count {
		r.seen = append(r.seen, summarize(lengths[:t.Count]))
	}
	return err
}

func (r *result) combine() {
	r.Pause, r.Call = combine(r.pause), combine(r.call)
	if len(r.window) > 0 {
		f := combine(r.window)
		r.Window = &f
	}
	if len(r.seen) > 0 {
		f := combine(r.seen)
		r.Seen = &f
	}
	for name, part := range r.parts {
		if r.Parts == nil {
			r.Parts = map[string]figure{}
		}
		r.Parts[name] = combine(part)
	}
}

// noise runs the loop without a tool, and records how long the machine itself stopped it.
func (r *report) noise(ctx context.Context, target target) error {
	if target.gaps == nil {
		return nil
	}
	before := target.gaps.count()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
	}
	lengths, err := target.gaps.since(before)
	if err != nil {
		return err
	}
	n := 0
	for n < len(lengths) && lengths[n] > noiseFloor {
		n++
	}
	r.noisePerSecond = append(r.noisePerSecond, n)
	if len(lengths) > 0 {
		r.noiseLongest = append(r.noiseLongest, lengths[0])
	}
	return nil
}

// depth records the number of frames that our own capture has at each target.
func (r *report) depth(ctx context.Context, o options, targets *targets) error {
	for _, target := range targets.List {
		out, err := output(command(ctx, o.Binary, "capture", "--format", "json", strconv.Itoa(target.PID)))
		if err != nil {
			return err
		}
		var capture struct {
			Threads []struct {
				Frames []struct{} `json:"frames"`
			} `json:"threads"`
		}
		if err := json.Unmarshal(out, &capture); err != nil {
			return fmt.Errorf("capture of the %s: %w", target.Name, err)
		}
		for _, one := range r.Results {
			if one.Target == target.Name && one.Tool == ours && len(capture.Threads) > 0 {
				one.Depth = len(capture.Threads[0].Frames)
			}
		}
	}
	return nil
}
