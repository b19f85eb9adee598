package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	s := &runner{programs: map[int]<-chan struct{}{}}
	queue := requests(input, &dropped, cancel)
	for {
		q, ok := s.next(queue)
		if !ok {
			return nil
		}
		if q.Reload {
			if changed, err := load(); err == nil {
				c = changed
			}
			continue
		}
		r := s.run(ctx, &c, &q)
		if ctx.Err() != nil {
			return nil
		}
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("reporting a result: %w", err)
		}
		if n := dropped.Swap(0); n > 0 {
			r := Result{
				Rule: q.Rule, Status: -1, Error: fmt.Sprintf("%d later alerts were dropped: the command was still running for earlier ones", n),
			}
			if err := out.Encode(r); err != nil {
				return fmt.Errorf("reporting a result: %w", err)
			}
		}
	}
}

// next returns the next request; false: the input has ended. While stuck processes exist, it kills from time to time what they leave.
func (s *runner) next(queue <-chan request) (request, bool) {
	for s.stuck() > 0 {
		select {
		case q, ok := <-queue:
			return q, ok
		case <-time.After(stuckPause):
			s.killOrphans(0, time.Now())
		}
	}
	q, ok := <-queue
	return q, ok
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

// Limits of killed processes that do not end. The kernel does not end a process in an uninterruptible sleep, such as a call to a disk
// that does not answer.
const (
	maxStuck   = 4               // above this number, run starts no program
	killLimit  = 3 * time.Second // time for which run waits for the end of killed processes
	killPause  = 5 * time.Millisecond
	stuckPause = 10 * time.Second // between looks for the end of stuck processes
)

// runner runs the program of the rules for one alert after the other.
type runner struct {
	programs map[int]<-chan struct{} // programs that were killed and had not ended, by process id; closed when it has ended
	orphans  map[int]bool            // processes that programs have left, were killed and had not ended
}

// run runs the program once, with the alert of q as its standard input, and kills it after the time limit of c. If killed processes do
// not end, it returns after killLimit nevertheless.
func (s *runner) run(ctx context.Context, c *rules.Command, q *request) (r Result) {
	r = Result{Rule: q.Rule, Status: -1}
	if len(c.Run) == 0 {
		r.Error = "the file of rules has no command now"
		return r
	}
	if s.killOrphans(0, time.Now()); s.stuck() >= maxStuck {
		r.Error = "not started: " + s.describe()
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
	status, err := s.end(p, ended)
	r.Status, r.Duration = status, time.Since(begin)
	r.Output, r.Cut = out.text()
	switch {
	case s.stuck() > 0:
		r.Error = s.describe()
	case late:
		r.Error = fmt.Sprintf("killed after %s", c.Timeout)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		r.Error = err.Error()
	}
	return r
}

// end kills a program and the processes that it has left, and waits for them for at most killLimit. The channel is closed when the
// program has ended. end returns the exit status and the error of p.Wait, or -1 and nil if the program has not ended yet.
func (s *runner) end(p *exec.Cmd, ended <-chan struct{}) (int, error) {
	until := time.Now().Add(killLimit)
	_ = unix.Kill(-p.Process.Pid, unix.SIGKILL)
	select {
	case <-ended:
		s.killOrphans(p.Process.Pid, until)
		err := p.Wait()
		return p.ProcessState.ExitCode(), err
	case <-time.After(killLimit):
	}
	gone := make(chan struct{})
	s.programs[p.Process.Pid] = gone
	go func() {
		<-ended
		_ = p.Wait() // also closes the pipes
		close(gone)
	}()
	s.killOrphans(0, time.Now())
	return -1, nil
}

// killOrphans kills the processes that programs have left, also in other process groups. When a process ends, its children become
// children of this process, so that the next round finds them. It stops at the time until, but makes at least one round. own is the id
// of a program that has ended, and for which the caller waits.
func (s *runner) killOrphans(own int, until time.Time) {
	for {
		left, fresh, ended := map[int]bool{}, 0, false
		for _, pid := range children() {
			if pid == own || s.programs[pid] != nil {
				continue
			}
			_ = unix.Kill(pid, unix.SIGKILL) // the id is of our child: no other process gets it before the next line
			if reaped(pid) {
				ended = true
				continue
			}
			left[pid] = true
			if !s.orphans[pid] {
				fresh++
			}
		}
		if fresh == 0 && !ended || !time.Now().Before(until) {
			s.orphans = left
			return
		}
		if !ended {
			time.Sleep(killPause)
		}
	}
}

// reaped removes a zombie. It returns false if the child has not ended.
func reaped(pid int) bool {
	for {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return got == pid || err != nil
		}
	}
}

// stuck returns the number of killed processes that have not ended.
func (s *runner) stuck() int {
	for pid, gone := range s.programs {
		select {
		case <-gone:
			delete(s.programs, pid)
		default:
		}
	}
	return len(s.programs) + len(s.orphans)
}

// describe names the processes that stuck counts.
func (s *runner) describe() string {
	const most = 10
	pids := slices.Sorted(maps.Keys(s.programs))
	pids = append(pids, slices.Sorted(maps.Keys(s.orphans))...)
	who := "1 killed process has"
	if len(pids) != 1 {
		who = fmt.Sprintf("%d killed processes have", len(pids))
	}
	return fmt.Sprintf("%s not ended and may wait for a disk that does not answer: PID %s", who,
		strings.ReplaceAll(strings.Trim(fmt.Sprint(pids[:min(len(pids), most)]), "[]"), " ", ", "))
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

// bounded keeps the first maxOutput bytes that are written to it. It is safe for concurrent use: a program that does not end may write
// while run reads.
type bounded struct {
	lock sync.Mutex
	b    []byte
	cut  bool
}

// writePause makes a program that writes without end slow, so that this process needs little processor time for it.
const writePause = time.Millisecond

func (o *bounded) Write(p []byte) (int, error) {
	o.lock.Lock()
	n := min(len(p), maxOutput-len(o.b))
	o.b = append(o.b, p[:n]...)
	o.cut = o.cut || n < len(p)
	cut := o.cut
	o.lock.Unlock()
	if cut {
		time.Sleep(writePause)
	}
	return len(p), nil
}

func (o *bounded) text() (text string, cut bool) {
	o.lock.Lock()
	defer o.lock.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(o.b)), "?"), o.cut
}
