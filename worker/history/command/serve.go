package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/history/rules"
)

// Serve is the main function of the helper. For each alert that it reads from input, it runs the program of the rules, and writes a
// Result to output. It returns nil when the input ends. It gets the program from the function load, which reads the file of rules.
func Serve(input io.Reader, output io.Writer, load func() (rules.Command, error)) error {
	// giveUpRights changes this thread only, and a program inherits the rights of the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := giveUpRights(); err != nil {
		return err
	}
	c, err := load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := json.NewEncoder(output)
	var dropped atomic.Int64
	for q := range requests(input, &dropped, cancel) {
		if q.Reload {
			if changed, err := load(); err == nil {
				c = changed
			}
			continue
		}
		r := run(ctx, &c, &q)
		if ctx.Err() != nil {
			return nil
		}
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("reporting a result: %w", err)
		}
		if n := dropped.Swap(0); n > 0 {
			r := Result{Rule: q.Rule, Status: -1, Error: fmt.Sprintf("%d later alerts were dropped: the command was still running for earlier ones", n)}
			if err := out.Encode(r); err != nil {
				return fmt.Errorf("reporting a result: %w", err)
			}
		}
	}
	return nil
}

// requests reads the input in a goroutine until the input ends, and then calls the function ended. The goroutine never waits for a
// program, so that it notices the end at once. If the queue is full, it drops the alert and adds 1 to dropped.
func requests(input io.Reader, dropped *atomic.Int64, ended func()) <-chan request {
	queue := make(chan request, queueLength)
	go func() {
		defer close(queue)
		defer ended()
		lines := bufio.NewScanner(input)
		lines.Buffer(nil, maxRequest)
		for lines.Scan() {
			var q request
			if json.Unmarshal(lines.Bytes(), &q) != nil {
				return
			}
			select {
			case queue <- q:
			default:
				dropped.Add(1)
			}
		}
	}()
	return queue
}

// giveUpRights drops all capabilities of this thread. Programs that it starts get no descriptors and cannot get new privileges.
func giveUpRights() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	// Processes that a program leaves become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphans: %w", err)
	}
	return closeAtExec()
}

// closeAtExec marks all descriptors to be closed in new programs, except the first three: exec.Cmd sets these for each program.
func closeAtExec() error {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("reading the open descriptors: %w", err)
	}
	for _, e := range list {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > unix.Stderr {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// run runs the program once, with the alert of q as its standard input, and kills it after the time limit of c.
func run(ctx context.Context, c *rules.Command, q *request) (r Result) {
	r = Result{Rule: q.Rule, Status: -1}
	if len(c.Run) == 0 {
		r.Error = "the file of rules has no command now"
		return r
	}
	// The file of the program may have changed since load checked it.
	if err := rules.CheckProgram(c.Run[0]); err != nil {
		r.Error = err.Error()
		return r
	}
	var out bounded
	p := exec.Command(c.Run[0], c.Run[1:]...) //nolint:noctx,gosec // the timer below limits the time; the file of rules is trusted
	p.Env, p.Dir, p.Stdin, p.Stdout, p.Stderr = Environment(), "/", bytes.NewReader(q.Alert), &out, &out
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.WaitDelay = time.Second // Wait returns after this time even if another process keeps the output pipe open
	begin := time.Now()
	if err := p.Start(); err != nil {
		r.Error = err.Error()
		return r
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// With WNOWAIT the process stays a zombie. So no other process gets its id, which is also the id of its group.
		for errors.Is(unix.Waitid(unix.P_PID, p.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
	}()
	limit := time.NewTimer(c.Timeout)
	defer limit.Stop()
	late := false
	select {
	case <-ended:
	case <-ctx.Done():
	case <-limit.C:
		late = true
	}
	_ = unix.Kill(-p.Process.Pid, unix.SIGKILL)
	<-ended
	killOrphans(p.Process.Pid)
	err := p.Wait()
	r.Duration = time.Since(begin)
	r.Output, r.Cut = out.text(), out.cut
	r.Status = p.ProcessState.ExitCode()
	switch {
	case late:
		r.Error = fmt.Sprintf("killed after %s", c.Timeout)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		r.Error = err.Error()
	}
	return r
}

// killOrphans kills the processes that a program has left, also in other process groups. When a process ends, its children become
// children of this process, so that the next round finds them. own is the id of the program itself, for which the caller waits.
func killOrphans(own int) {
	const rounds = 100
	for range rounds {
		found := false
		for _, pid := range children() {
			if pid == own {
				continue
			}
			found = true
			if unix.Kill(pid, unix.SIGKILL) != nil {
				continue
			}
			for _, err := unix.Wait4(pid, nil, 0, nil); errors.Is(err, unix.EINTR); _, err = unix.Wait4(pid, nil, 0, nil) {
			}
		}
		if !found {
			return
		}
	}
}

func children() (pids []int) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// bounded keeps the first maxOutput bytes that are written to it. It needs no lock: Stdout and Stderr of the exec.Cmd are the same
// writer, so one goroutine writes.
type bounded struct {
	b   []byte
	cut bool
}

func (o *bounded) Write(p []byte) (int, error) {
	n := min(len(p), maxOutput-len(o.b))
	o.b = append(o.b, p[:n]...)
	o.cut = o.cut || n < len(p)
	return len(p), nil
}

func (o *bounded) text() string { return strings.ToValidUTF8(strings.TrimSpace(string(o.b)), "?") }
