package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/measure/waitevent"
)

// modeAndRate splits the name of a profile, such as cpu or cpu@10, into its mode and samples a second (default 99).
func modeAndRate(name string) (mode clusterprofile.Mode, rate float64, err error) {
	kind, text, given := strings.Cut(name, "@")
	rate = clusterprofile.DefaultRate
	if given {
		if rate, err = strconv.ParseFloat(text, 64); err != nil {
			return "", 0, fmt.Errorf("the rate of profile-%s: %w", name, err)
		}
	}
	return clusterprofile.Mode(kind), rate, nil
}

// profileServer begins to take a profile of the server, with labels. The result of stop is how many stacks were taken.
func profileServer(
	ctx context.Context, server *waitevent.Server, _ *load, mode string, r *result,
) (stop func() uint64, err error) {
	kind, rate, err := modeAndRate(mode)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	started, ended := make(chan struct{}), make(chan error, 1)
	var stacks uint64
	go func() {
		_, summary, err := clusterprofile.Collect(ctx, clusterprofile.Options{
			Cluster: &server.Cluster, Mode: kind, Rate: rate, Duration: time.Minute,
			Started: func() { close(started) },
		})
		if summary != nil {
			stacks = uint64(summary.Taken)
		}
		ended <- err
	}()
	r.mechanism = mode
	select {
	case <-started:
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() uint64 {
		cancel()
		<-ended
		return stacks
	}, nil
}

// perfRecord begins perf record of the sessions' backends, with call graphs by frame pointers.
func perfRecord(
	ctx context.Context, _ *waitevent.Server, l *load, _ string, r *result,
) (stop func() uint64, err error) {
	pids := make([]string, len(l.pids))
	for i, pid := range l.pids {
		pids[i] = strconv.Itoa(pid)
	}
	const perfStarts = 200 * time.Millisecond
	r.mechanism = "-F 99 -g"
	file, err := os.CreateTemp("", "perf-*.data")
	if err != nil {
		return nil, err
	}
	_ = file.Close()
	command := exec.CommandContext(ctx, "perf", "record", "-q", "-F", "99", "-g", "-e", "cpu-clock", "-o", file.Name(),
		"-p", strings.Join(pids, ","))
	if err := command.Start(); err != nil {
		_ = os.Remove(file.Name())
		return nil, fmt.Errorf("perf: %w", err)
	}
	time.Sleep(perfStarts)
	return func() uint64 {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
		_ = os.Remove(file.Name())
		return 0
	}, nil
}

// describeProfile takes one long profile, and prints its own figures.
func describeProfile(ctx context.Context, o options, server *waitevent.Server, mode string) error {
	kind, rate, err := modeAndRate(mode)
	if err != nil {
		return err
	}
	_, s, err := clusterprofile.Collect(ctx, clusterprofile.Options{
		Cluster: &server.Cluster, Mode: kind, Rate: rate, Duration: o.Profile,
	})
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	fmt.Printf("          %.0f s: %d stacks, %.2f %% with all labels; the programs in the kernel take %.2f %% of "+
		"the server's processor time\n", s.Took.Seconds(), s.Taken, 100*s.LabelledShare(),
		100*s.KernelTime.Seconds()/s.CPU.Seconds())
	return nil
}
