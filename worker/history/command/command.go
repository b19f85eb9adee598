// Package command runs a program when an alert begins or ends. The file of rules names the program (rules.Command).
//
// The worker's filter of system calls forbids the worker to start a program. A helper process does this instead. The worker starts
// the helper before it sets the filter. The helper reads the file of rules itself: the worker sends alerts only, and cannot choose
// the program. The helper ends when its input ends, also if the worker was killed.
//
// A program gets no shell, no capabilities, no descriptors except its input and output, and a small environment. The helper
// runs one program at a time. After the time limit, and also after a program has ended, the helper kills the program's process
// group and the other processes that the program has left. If a killed process does not end, because a disk does not answer, the helper
// continues without it, up to a limit.
//
// The package does not log. It must not know what an incident is.
package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds of the messages between worker and helper.
const (
	queueLength = 16
	maxRequest  = 64 << 10
	maxOutput   = 4 << 10
	maxResult   = 64 << 10 // JSON has at most six bytes for each byte of maxOutput
)

// ErrQueueFull means that an alert was dropped, because queueLength messages wait for the helper.
var ErrQueueFull = errors.New("too many alerts wait for their commands")

// request is a message to the helper: one line of JSON.
type request struct {
	// Reload asks the helper to read the file of rules again. If Reload is not set, the helper runs the program with Alert as its
	// standard input. Rule is the name of the rule that found the incident, for the Result.
	Reload bool            `json:"reload,omitempty"`
	Rule   string          `json:"rule,omitempty"`
	Alert  json.RawMessage `json:"alert,omitempty"`
}

// Result describes one run of the program.
type Result struct {
	Rule string `json:"rule"`
	// Status is the exit status; -1: a signal ended the program, or it was not started.
	Status int `json:"status"`
	// Error is the reason why the program did not end with status 0; empty: its status is 0.
	Error string `json:"error,omitempty"`
	// Output has the first bytes of standard output and standard error together. Cut is set if the program has written more.
	Output   string        `json:"output,omitempty"`
	Cut      bool          `json:"cut,omitempty"`
	Duration time.Duration `json:"duration_ns"`
}

// Runner sends alerts to the helper; the worker has one. It is safe for concurrent use.
type Runner struct {
	input   io.WriteCloser
	output  io.ReadCloser
	process *exec.Cmd
	queue   chan request
	gone    atomic.Bool
	close   sync.Once
}

// Start starts the helper. The process of the command must call Serve with its standard input and output. The caller must call Run.
func Start(helper *exec.Cmd) (*Runner, error) {
	helper.Env = Environment()
	helper.Dir = "/"
	helper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of a terminal, such as Ctrl-C, go to the worker only
	input, err := helper.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("helper for commands: %w", err)
	}
	output, err := helper.StdoutPipe()
	if err != nil {
		_ = input.Close()
		return nil, fmt.Errorf("helper for commands: %w", err)
	}
	if err := helper.Start(); err != nil {
		return nil, fmt.Errorf("helper for commands: %w", err)
	}
	return &Runner{input: input, output: output, process: helper, queue: make(chan request, queueLength)}, nil
}

// Environment returns the environment of the helper and of each program that it runs.
func Environment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LANG=C", "LC_ALL=C"}
}

// Send queues an alert in JSON for the helper. It never blocks. It returns ErrQueueFull if the queue is full. It also returns an
// error if the alert is too large or the helper has ended.
func (r *Runner) Send(rule string, alert []byte) error {
	if len(alert) > maxRequest/2 {
		return fmt.Errorf("the alert has %d bytes; at most %d are allowed", len(alert), maxRequest/2)
	}
	return r.put(request{Rule: rule, Alert: alert})
}

// Reload asks the helper to read the file of rules again. If the file has an error, the helper keeps the former command. Reload
// returns ErrQueueFull if the queue is full, and another error if the helper has ended.
func (r *Runner) Reload() error { return r.put(request{Reload: true}) }

func (r *Runner) put(q request) error {
	if r.gone.Load() {
		return errors.New("the helper that runs commands has ended; restart the worker")
	}
	select {
	case r.queue <- q:
		return nil
	default:
		return ErrQueueFull
	}
}

// Close closes the helper's input. The helper then kills a running program, and ends.
func (r *Runner) Close() { r.close.Do(func() { _ = r.input.Close() }) }

// Run sends the queued alerts, and passes each result to the callback report, until the helper ends. Close makes the helper end.
// Run returns the error with which the helper's process ended.
func (r *Runner) Run(report func(Result)) error {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		w := json.NewEncoder(r.input)
		for {
			select {
			case <-stop:
				return
			case q := <-r.queue:
				if w.Encode(q) != nil {
					return // the helper has gone, or Close was called
				}
			}
		}
	})
	lines := bufio.NewScanner(r.output)
	lines.Buffer(nil, maxResult)
	for lines.Scan() {
		var result Result
		if err := json.Unmarshal(lines.Bytes(), &result); err == nil {
			report(result)
		}
	}
	r.gone.Store(true)
	r.Close()
	close(stop)
	wg.Wait()
	return r.process.Wait()
}

// self is the file of the helper's program: this program.
const self = "/proc/self/exe"

// Self returns a command that runs this program with the arguments, for Start.
func Self(arguments ...string) *exec.Cmd {
	c := exec.Command(self, arguments...) //nolint:noctx // the helper ends with its input
	c.Args[0] = os.Args[0]
	return c
}
