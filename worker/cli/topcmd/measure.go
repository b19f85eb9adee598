package topcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/report/render"
)

// measure prints the command line of a command of this program, runs the command on the terminal, and waits until the
// user presses Enter. The command is the foreground process group, so that ^C ends only the command. While the command
// runs, ^Z is switched off, because the screen could not continue.
func measure(ctx context.Context, args []string) error {
	words := []string{"pg_stat_backtrace"}
	for _, a := range args {
		words = append(words, render.ShellWord(a))
	}
	_, _ = fmt.Fprintf(os.Stdout, "\n$ %s\n", strings.Join(words, " "))
	terminal := int(os.Stdin.Fd())
	signal.Ignore(unix.SIGTTOU) // the kernel sends it when this program becomes the foreground process group again
	defer signal.Reset(unix.SIGTTOU)
	restore, err := withoutSuspension(terminal)
	if err != nil {
		return err
	}
	defer restore()
	c := exec.CommandContext(ctx, "/proc/self/exe", args...) // the same program even if an update has replaced the file
	c.Args[0] = words[0]
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	c.SysProcAttr = &unix.SysProcAttr{Foreground: true, Ctty: terminal, Pdeathsig: unix.SIGTERM}
	err = c.Run()
	if back := unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, unix.Getpgrp()); back != nil {
		return back
	}
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) { // a command that exits with an error has printed the reason
		return err
	}
	_, _ = fmt.Fprint(os.Stdout, "\nEnter: back to the screen ")
	return awaitLine(ctx, terminal)
}

// withoutSuspension switches off the key ^Z of a terminal, until the caller calls the function restore.
func withoutSuspension(terminal int) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(terminal, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	now := *before
	now.Cc[unix.VSUSP] = 0 // _POSIX_VDISABLE
	if err := unix.IoctlSetTermios(terminal, unix.TCSETS, &now); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(terminal, unix.TCSETS, before) }, nil
}

// awaitLine waits for a line on the terminal, or for the end of ctx.
func awaitLine(ctx context.Context, terminal int) error {
	const look = 200 // milliseconds between two checks of ctx
	for ctx.Err() == nil {
		files := []unix.PollFd{{Fd: int32(terminal), Events: unix.POLLIN}}
		n, err := unix.Poll(files, look)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			var line [4096]byte
			_, err := unix.Read(terminal, line[:])
			return err
		}
	}
	return nil
}
