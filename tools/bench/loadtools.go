package main

import (
	"context"
	"os/exec"
	"strconv"
	"time"
)

// loadTool is a tool that captures pgbench's backends.
type loadTool struct {
	loadFigure

	inRound int // number of turns: a tool with a low cost needs more of them to measure it
	start   starting
}

func loadTools(o options, p programs) []*loadTool {
	tools := []*loadTool{
		{loadFigure: loadFigure{Tool: loadNothing}, inRound: 2, start: startNothing},
		{loadFigure: loadFigure{Tool: ours}, inRound: 1, start: startOurs(o, "capture", "--stop", "--stats", "--repeat", "1000000",
			"--interval", (time.Second / loadRate).String())},
		{loadFigure: loadFigure{Tool: floor}, inRound: 1, start: onAndOn(p, "floor")},
		{loadFigure: loadFigure{Tool: "libunwind", Absent: p.absent["libunwind"]}, inRound: 1,
			start: onAndOn(p, "libunwind")},
	}
	stack, err := exec.LookPath("eu-stack")
	tool := &loadTool{loadFigure: loadFigure{Tool: "eu-stack"}, inRound: 1}
	if err != nil {
		tool.Absent = "not installed"
	} else {
		tool.start = startAgain(func(ctx context.Context, pid int) (int, error) {
			if _, err := output(command(ctx, stack, "-p", strconv.Itoa(pid))); err != nil && !exited(err, 1) {
				return 0, err
			}
			return 1, nil
		}, time.Second/loadRate)
	}
	return append(tools, tool)
}

// onAndOn captures with one of the C programs repeatedly, for a quarter of a second at a time, and counts the
// captures.
func onAndOn(p programs, name string) starting {
	return startAgain(func(ctx context.Context, pid int) (int, error) {
		t, err := decode(command(ctx, p.path[name], strconv.Itoa(loadRate/4), strconv.Itoa(1_000_000/loadRate),
			strconv.Itoa(pid)))
		return t.Count, err
	}, 0)
}
