package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// starting starts a tool in paused state. While it is not paused, it captures the processes at loadRate.
type starting func(ctx context.Context, pids []int) (pulses, error)

// pulses is that tool.
type pulses interface {
	resume() error
	pause() error // when it returns the tool does no work
	// end is called while the tool is paused. rate is the number of captures per second of unpaused time.
	end() (rate float64, err error)
}

// pulseSettles is how long a program runs before its first pause, so that its start is over.
const pulseSettles = 500 * time.Millisecond

// nothing is the tool that does nothing.
type nothing struct{}

func startNothing(context.Context, []int) (pulses, error) { return nothing{}, nil }

func (nothing) resume() error         { return nil }
func (nothing) pause() error          { return nil }
func (nothing) end() (float64, error) { return 0, nil }

// program is one of our commands, which the terminal's stop signal suspends.
type program struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	since          time.Time     // when it was continued
	worked         time.Duration // before
}

func startOurs(o options, arguments ...string) starting {
	return func(ctx context.Context, pids []int) (pulses, error) {
		all := slices.Clone(arguments)
		for _, pid := range pids {
			all = append(all, strconv.Itoa(pid))
		}
		p := &program{cmd: command(ctx, o.Binary, all...), since: time.Now()}
		p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
		// The kernel does not suspend a process in an orphaned process group.
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := p.cmd.Start(); err != nil {
			return nil, fmt.Errorf("start: %w", err)
		}
		err := sleep(ctx, pulseSettles)
		if err == nil {
			err = p.pause()
		}
		if err != nil {
			_ = p.cmd.Process.Kill()
			return nil, errors.Join(err, p.cmd.Wait())
		}
		return p, nil
	}
}

func (p *program) resume() error {
	p.since = time.Now()
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

func (p *program) pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGTSTP); err != nil {
		return fmt.Errorf("suspend: %w", err)
	}
	err := p.awaitStop()
	p.worked += time.Since(p.since)
	return err
}

// awaitStop waits until the program is stopped. If the program has ended, this is an error, and Wait reports it.
func (p *program) awaitStop() error {
	const stopped = 5 // CLD_STOPPED (asm-generic/siginfo.h)
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("waitid: %w", err)
		case info.Code != stopped:
			return errors.New("it has ended early")
		default:
			return nil
		}
	}
}

// end interrupts the program, which then prints its figures.
func (p *program) end() (float64, error) {
	_ = p.cmd.Process.Signal(os.Interrupt)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	failed := p.cmd.Wait()
	t, err := measurements(p.cmd, p.stdout.Bytes())
	seconds := p.worked.Seconds()
	if t.Seconds > 0 {
		seconds = t.Seconds // without the start-up time
	}
	if err == nil && t.Count > 0 {
		return float64(t.Count) / seconds, nil
	}
	return 0, errors.Join(err, failed, errors.New(p.stderr.String()))
}

// repeated is a tool that needs a separate run for each capture, or for a few.
type repeated struct {
	ctx      context.Context
	pids     []int
	capture  func(ctx context.Context, pid int) (captures int, err error)
	interval time.Duration

	cancel context.CancelFunc // from resume to pause
	group  sync.WaitGroup
	since  time.Time
	worked time.Duration

	mu     sync.Mutex
	total  int
	failed error
}

func startAgain(capture func(context.Context, int) (int, error), interval time.Duration) starting {
	return func(ctx context.Context, pids []int) (pulses, error) {
		return &repeated{ctx: ctx, pids: pids, capture: capture, interval: interval}, nil
	}
}

// resume captures each process in a separate goroutine, once in an interval if the tool is fast enough.
func (r *repeated) resume() error {
	ctx, cancel := context.WithCancel(r.ctx)
	r.cancel, r.since = cancel, time.Now()
	for _, pid := range r.pids {
		r.group.Go(func() {
			for ctx.Err() == nil {
				next := time.Now().Add(r.interval)
				if !r.once(ctx, pid) {
					return
				}
				time.Sleep(time.Until(next))
			}
		})
	}
	return nil
}

// once runs the tool to its end, because a killed tool can leave its target stopped.
func (r *repeated) once(ctx context.Context, pid int) bool {
	n, err := r.capture(context.WithoutCancel(ctx), pid)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += n
	r.failed = errors.Join(r.failed, err)
	return err == nil
}

func (r *repeated) pause() error {
	r.cancel()
	r.group.Wait()
	r.worked += time.Since(r.since)
	return r.failed
}

func (r *repeated) end() (float64, error) {
	if r.cancel != nil {
		r.cancel() // again, unless it was not let pause
		r.group.Wait()
	}
	return float64(r.total) / max(r.worked, 1).Seconds(), nil
}
