package ptrace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestFaultReusedPID runs in a PID namespace, in which the next process id can be chosen. The id of the expected
// process passes to another process of the same program, user and parent, before or during a capture. The capture
// must never return data of the other process, and must not touch it.
func TestFaultReusedPID(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("only root can make a PID namespace")
	}
	if targetProgram == "" {
		t.Skip("no gcc to compile testdata/target.c with")
	}
	n := full(30, 1000)
	cmd := actor("reuse", targetProgram, strconv.Itoa(n))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(string(out), "no such namespace: ") {
		t.Skip(string(out))
	}
	if err != nil || !strings.Contains(string(out), "reused") {
		t.Errorf("%v: %s", err, out)
	}
	figure.Printf(t, "%s", out)
}

// reuseRole is the first process of the namespace.
func reuseRole(args []string) int {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", 0, "")
	}
	if err != nil {
		fmt.Fprintln(os.Stdout, "no such namespace: ", err)
		return 1
	}
	n, _ := strconv.Atoi(args[1])
	outcomes := counts{}
	for _, engine := range []engine{Capture, observe.Observe} {
		if err := reuseAtOnce(args[0], engine, outcomes); err != nil {
			fmt.Fprintln(os.Stdout, err)
			return 1
		}
	}
	for i := range n {
		what, err := reuse(args[0], i)
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
			return 1
		}
		outcomes[what]++
	}
	fmt.Fprintf(os.Stdout, "%d ids reused: %v\n", n, outcomes)
	return 0
}

// reuse makes one id pass from a process to another one, and returns the result of capturing the first one.
func reuse(program string, i int) (string, error) {
	first, err := rest(program)
	if err != nil {
		return "", err
	}
	stat, err := process.ReadStat(first.Process.Pid)
	if err != nil {
		return "", fmt.Errorf("reading what is meant: %w", err)
	}
	target := process.Target{PID: stat.PID, StartTime: stat.StartTime, PPID: stat.PPID, UID: unix.Getuid()}
	var second *exec.Cmd
	replace := func() {
		if second, err = replaced(first, program, stat.StartTime+1); err != nil {
			second = nil
		}
	}
	capture, when := engine(Capture), "before"
	switch i % 3 {
	case 0:
		replace()
	case 1:
		when = "in the middle"
		capture = func(ctx context.Context, t process.Target, o snapshot.Options) (*snapshot.Snapshot, error) {
			return captureWith(ctx, t, o, func(s step) {
				if s == stepMapped && second == nil { // the id passes on once
					replace()
				}
			})
		}
	case 2:
		replace()
		capture = observe.Observe
	}
	captureErr := untilSeen(func() error {
		_, err := capture(context.Background(), target, snapshot.Options{Deadline: patience})
		return err
	})
	if err != nil {
		return "", err
	}
	if !errors.Is(captureErr, process.ErrRecycled) && !errors.Is(captureErr, process.ErrExited) {
		return "", fmt.Errorf("the id was reused %s: %v", when, captureErr) //nolint:errorlint // it may be nil
	}
	status, err := process.ReadStatus(target.PID)
	if err != nil || status.TracerPID != 0 || status.State == 'T' || status.State == 't' {
		return "", fmt.Errorf("the second process is in state %c, traced by %d: %v",
			status.State, status.TracerPID, err) //nolint:errorlint // it may be nil
	}
	_ = second.Process.Kill()
	_ = second.Wait()
	return "refused, " + when + fmt.Sprintf(" (%T)", captureErr), nil
}

// reuseAtOnce repeats until an id passes on within a hundredth of a second. /proc then shows the same for both
// processes. Only a handle of the first process can distinguish them.
func reuseAtOnce(
	program string, engine engine, outcomes counts,
) error {
	for begin := time.Now(); time.Since(begin) < 20*time.Second; {
		for now := ticks(); ticks() == now; { // to begin at its beginning
		}
		first, err := rest(program)
		if err != nil {
			return err
		}
		pid := first.Process.Pid
		held, err := process.Hold(pid)
		if err != nil {
			return err
		}
		before, err1 := process.ReadStat(pid)
		second, err2 := replaced(first, program, 0)
		after, err3 := process.ReadStat(pid)
		if err := errors.Join(err1, err2, err3); err != nil {
			return fmt.Errorf("an id that passes on: %w", err)
		}
		same := before.StartTime == after.StartTime
		target := process.Target{PID: pid, StartTime: after.StartTime, PPID: after.PPID, UID: unix.Getuid()}
		mistaken := untilSeen(func() error {
			_, err := engine(context.Background(), target, snapshot.Options{})
			return err
		})
		target.Held = held
		_, refused := engine(context.Background(), target, snapshot.Options{})
		held.Release()
		_ = second.Process.Kill()
		_ = second.Wait()
		switch {
		case mistaken != nil || !errors.Is(refused, process.ErrExited):
			return fmt.Errorf("by its number: %v; held: %v", mistaken, refused) //nolint:errorlint // they may be nil
		case same:
			outcomes["refused, within a hundredth of a second"]++
			return nil
		}
		outcomes["refused, some time later"]++ // this machine may be too slow for more
	}
	return nil
}

// untilSeen repeats a capture that a busy machine delays too long. Such a result says nothing about the id.
func untilSeen(capture func() error) (err error) {
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		err = capture()
		if !errors.Is(err, ErrDeadline) && !errors.Is(err, observe.ErrNotObserved) {
			break
		}
	}
	return err
}

// rest starts a process that does nothing.
func rest(program string) (*exec.Cmd, error) {
	cmd := exec.Command(program, "sleep")
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		return nil, fmt.Errorf("it said %q: %w", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }()
	return cmd, nil
}

// replaced ends a process and starts others until one has the same id. /proc distinguishes them by their start times
// in hundredths of a second. The second process starts at the given time or later.
func replaced(first *exec.Cmd, program string, from uint64) (*exec.Cmd, error) {
	_ = first.Process.Kill()
	_ = first.Wait()
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		if ticks() < from {
			continue
		}
		last := strconv.Itoa(first.Process.Pid - 1)
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(last), 0); err != nil {
			return nil, fmt.Errorf("choosing the next id: %w", err)
		}
		cmd, err := rest(program)
		if err != nil {
			return nil, err
		}
		if cmd.Process.Pid == first.Process.Pid {
			return cmd, nil
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return nil, fmt.Errorf("process id %d does not come again", first.Process.Pid)
}

// ticks is the time since the system's start as /proc/PID/stat counts it.
func ticks() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return uint64(now.Sec)*100 + uint64(now.Nsec)/10_000_000
}
