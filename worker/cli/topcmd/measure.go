package topcmd

import (
	"bytes"
	"context"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/screen/view"
)

// measurement is a command of this program that runs while the screen is shown.
type measurement struct {
	result        *view.Result
	output, notes bounded
	cancel        context.CancelFunc
	done          chan struct{} // closed when the command has ended, and failed is set
	failed        error
}

// maxOutput is the number of bytes that are kept of the output of a command. The most important is at the begin of the output.
const maxOutput = 1 << 20

// bounded keeps the first maxOutput bytes that are written to it.
type bounded struct {
	mu     sync.Mutex
	buffer bytes.Buffer
	lost   bool
}

// Write implements io.Writer. It returns no error.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := p[:min(len(p), maxOutput-b.buffer.Len())]
	b.lost = b.lost || len(keep) < len(p)
	b.buffer.Write(keep)
	return len(p), nil
}

// text returns what was written so far.
func (b *bounded) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.buffer.String()
	if b.lost {
		text += "\n(the rest is left out)\n"
	}
	return text
}

// measure starts a command of this program. Its output goes to the result, which refresh fills. The command has no terminal: the
// key ^C of the screen ends only the command, and ^Z suspends only the screen.
func measure(ctx context.Context, result *view.Result, args []string) *measurement {
	ctx, cancel := context.WithCancel(ctx)
	m := &measurement{result: result, cancel: cancel, done: make(chan struct{})}
	c := exec.CommandContext(ctx, "/proc/self/exe", args...) // the same program even if an update has replaced the file
	c.Args[0] = programName
	c.Stdout, c.Stderr = &m.output, &m.notes
	c.Cancel = func() error { return c.Process.Signal(unix.SIGINT) } // the command then prints its results so far
	c.WaitDelay = 10 * time.Second
	c.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	go func() {
		runtime.LockOSThread() // the kernel sends Pdeathsig when the thread ends that has started the command
		defer runtime.UnlockOSThread()
		defer close(m.done)
		m.failed = host.Catch("command", c.Run)
	}()
	return m
}

// refresh writes into the result what the command has written so far. ended is set if m.done is closed.
func (m *measurement) refresh(ended bool, now time.Time) {
	m.result.Output, m.result.Notes = m.output.text(), m.notes.text()
	if !ended {
		return
	}
	m.result.Ended = now
	if m.failed != nil {
		m.result.Failed = m.failed.Error()
	}
}
