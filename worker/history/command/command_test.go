package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/disktest"
	"pg_stat_backtrace/worker/history/rules"
)

// The helper is a copy of the test binary.
const asHelper = "helper"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == asHelper {
		err := Serve(os.Stdin, os.Stdout, func() (rules.Command, error) {
			c, err := rules.Load(os.Args[2])
			return c.Command, err
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// alerts runs a script for alerts.
type alerts struct {
	t       *testing.T
	runner  *Runner
	file    string
	dir     string
	results chan Result
	ended   chan error
}

// start makes a file of rules whose command is a script, and a helper.
func start(t *testing.T, script, timeout string) *alerts {
	t.Helper()
	a := &alerts{t: t, dir: t.TempDir(), results: make(chan Result, queueLength), ended: make(chan error, 1)}
	a.file = filepath.Join(a.dir, "rules.yaml")
	a.configure(script, timeout)
	var err error
	if a.runner, err = Start(Self(asHelper, a.file)); err != nil {
		t.Fatal(err)
	}
	go func() { a.ended <- a.runner.Run(func(r Result) { a.results <- r }) }()
	t.Cleanup(a.runner.Close)
	return a
}

func (a *alerts) configure(script, timeout string) {
	a.t.Helper()
	run, err := json.Marshal([]string{"/bin/sh", "-c", script, "sh", a.dir, "$(id); `id`"})
	if err == nil {
		err = os.WriteFile(a.file, fmt.Appendf(nil, "command: {run: %s, timeout: %s}", run, timeout), 0o600)
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *alerts) result(alert string) Result {
	a.t.Helper()
	if err := a.runner.Send("lock_wait", []byte(alert)); err != nil {
		a.t.Fatal(err)
	}
	select {
	case r := <-a.results:
		return r
	case err := <-a.ended:
		a.t.Fatal("the helper ended:", err)
	case <-time.After(5 * time.Minute):
		a.t.Fatal("no result")
	}
	return Result{}
}

// TestSurroundings has a program that prints its input, arguments, environment, descriptors and capabilities.
func TestSurroundings(t *testing.T) {
	t.Setenv("PGPASSWORD", "secret")
	// A descriptor without close-on-exec.
	leak, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	a := start(t, `cat; echo; echo "arguments: $2"; env | cut -d= -f1 | sort | tr '\n' ' '; echo; readlink /proc/self/cwd
grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs' /proc/self/status | tr -d '\t'
n=3; while [ $n -lt 64 ]; do [ -e /proc/$$/fd/$n ] && echo "has $n"; n=$((n+1)); done; echo "no more descriptors"`, "10s")
	r := a.result(`{"status":"firing"}`)
	for _, want := range []string{
		`{"status":"firing"}`, "arguments: $(id); `id`", "\nHOME LANG LC_ALL PATH PWD \n/\n",
		"CapInh:0000000000000000\nCapPrm:0000000000000000\nCapEff:0000000000000000\n", "CapAmb:0000000000000000\nNoNewPrivs:1\nno more descriptors",
	} {
		if !strings.Contains(strings.ReplaceAll(r.Output, "OLDPWD ", ""), want) {
			t.Errorf("no %q", want)
		}
	}
	if r.Error != "" || r.Status != 0 || r.Rule != "lock_wait" || r.Cut || strings.Contains(r.Output, "secret") || t.Failed() {
		t.Errorf("%+v", r)
	}
}

// TestEnd has a command that fails, a command with much output, a changed file of rules, a file of rules with an error, and
// programs that other users can change.
func TestEnd(t *testing.T) {
	t.Parallel()
	a := start(t, "echo no >&2; exit 3", "10s")
	if r := a.result("{}"); r.Status != 3 || r.Error != "exit status 3" || r.Output != "no" {
		t.Errorf("%+v", r)
	}
	reload := func(script string) {
		t.Helper()
		a.configure(script, "10s")
		if err := a.runner.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	reload("exec head -c 100000 /dev/zero")
	if r := a.result("{}"); r.Status != 0 || !r.Cut || len(r.Output) != maxOutput {
		t.Errorf("status %d, %d bytes, cut %t, %s", r.Status, len(r.Output), r.Cut, r.Error)
	}
	reload("echo good")
	if r := a.result("{}"); r.Output != "good" {
		t.Errorf("%+v after a change", r)
	}
	if err := os.WriteFile(a.file, []byte("command: {run: x}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.runner.Reload(); err != nil {
		t.Fatal(err)
	}
	if r := a.result("{}"); r.Output != "good" {
		t.Errorf("%+v after an error in the file", r)
	}
	if err := a.runner.Send("x", make([]byte, maxRequest)); err == nil {
		t.Error("a large alert was accepted")
	}
	a.runner.Close()
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
	if a.runner.Send("x", []byte("{}")) == nil {
		t.Error("an ended helper accepted an alert")
	}
}

// TestChangeable has a program that others can change after the file of rules was read.
func TestChangeable(t *testing.T) {
	t.Parallel()
	a := start(t, "true", "10s")
	program := filepath.Join(a.dir, "page")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho ran\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.file, fmt.Appendf(nil, "command: {run: [%s]}", program), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.runner.Reload(); err != nil {
		t.Fatal(err)
	}
	if r := a.result("{}"); r.Output != "ran" {
		t.Fatalf("%+v", r)
	}
	for path, modes := range map[string][2]os.FileMode{program: {0o720, 0o700}, a.dir: {0o777, 0o700}} {
		if err := os.Chmod(path, modes[0]); err != nil {
			t.Fatal(err)
		}
		if r := a.result("{}"); r.Output != "" || !strings.Contains(r.Error, "can be written") {
			t.Errorf("%s: %+v", path, r)
		}
		if _, err := rules.Load(a.file); err == nil || !errors.Is(err, rules.ErrFile) {
			t.Errorf("%s: %v", path, err)
		}
		if err := os.Chmod(path, modes[1]); err != nil {
			t.Fatal(err)
		}
	}
}

// daemon starts processes that outlive the shell, in its process group and in a session of their own, which keep the output open.
const daemon = `sleep 1000 & echo $! >>"$1/pids"; setsid sh -c 'echo $$ >>"$0/pids"; exec sleep 1000' "$1" &
while [ "$(wc -l <"$1/pids")" -lt 2 ]; do :; done; echo $$ >>"$1/pids"; `

// TestNothingIsLeft has programs that leave processes, programs that do not end, and a worker that ends while a program runs.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for name, c := range map[string]struct{ script, timeout, want string }{
		"leaves processes": {daemon + "exit 0", "10s", ""},
		// A process that starts its successor in a new session and ends, again and again.
		"hops":         {`printf 'echo $$ >>"$1/pids"; setsid sh "$1/hop" "$1" & exit' >"$1/hop"; sh "$1/hop" "$1"; sleep 0.1; exit 0`, "10s", ""},
		"does not end": {daemon + "trap '' TERM; while :; do sleep 1000; done", "3s", "killed after 3s"},
	} {
		wg.Go(func() {
			a := start(t, c.script, c.timeout)
			if r := a.result("{}"); r.Error != c.want && (c.want != "" || !strings.HasPrefix(r.Error, "killed")) {
				t.Errorf("%s: %+v", name, r)
			}
			a.gone(name)
		})
	}
	wg.Go(func() {
		a := start(t, daemon+"sleep 1000", "10s")
		if err := a.runner.Send("x", []byte("{}")); err != nil {
			t.Error(err)
			return
		}
		for begin := time.Now(); len(a.pids()) < 3 && len(a.results) == 0 && time.Since(begin) < time.Minute; {
			time.Sleep(10 * time.Millisecond)
		}
		a.runner.Close() // as the kernel does when the worker is killed
		if err := <-a.ended; err != nil {
			t.Error(err)
		}
		a.gone("the worker ends")
	})
	wg.Wait()
}

// pids returns the processes of the script.
func (a *alerts) pids() []string {
	text, _ := os.ReadFile(filepath.Join(a.dir, "pids")) // missing: the script was ended before
	return strings.Fields(string(text))
}

// gone expects that no process of the script exists.
func (a *alerts) gone(name string) {
	for _, word := range a.pids() {
		pid, err := strconv.Atoi(word)
		if err != nil {
			a.t.Errorf("%s: %v", name, err)
			continue
		}
		for begin := time.Now(); unix.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				a.t.Errorf("%s: process %d still exists", name, pid)
				break
			}
		}
	}
}

// TestManyAlerts sends more alerts than fit into the queues, while the program for the first one runs. Each is run or counted.
func TestManyAlerts(t *testing.T) {
	t.Parallel()
	a := start(t, `while ! [ -e "$1/go" ]; do sleep 0.01; done; echo ran`, "10s")
	const all = 100
	refused := 0
	for range all {
		err := a.runner.Send("x", []byte("{}"))
		if errors.Is(err, ErrQueueFull) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(a.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ran, dropped, lines := 0, 0, 0
	for ran+dropped < all-refused {
		select {
		case r := <-a.results:
			var n int
			if _, err := fmt.Sscanf(r.Error, "%d later alerts were dropped", &n); err == nil {
				dropped += n
				lines++
			} else {
				ran++
			}
		case <-time.After(time.Minute):
			t.Fatalf("%d ran, %d dropped, %d refused of %d", ran, dropped, refused, all)
		}
	}
	if ran+dropped+refused != all || ran < queueLength || lines > ran {
		t.Errorf("%d ran, %d dropped in %d lines, %d refused of %d", ran, dropped, lines, refused, all)
	}
}

// TestStuck has programs, and processes that they have left, which write to a disk that does not answer: the kernel does not end them.
// The helper runs further programs up to a limit, says why it starts no more, and runs programs again when the disk answers.
func TestStuck(t *testing.T) {
	t.Parallel()
	disk := disktest.NewExt4(t, "100")
	// Each argument of the shell function is a file that a process in a new session writes.
	a := start(t, `write() { setsid sh -c 'echo $$ >>"$1/pids"; exec 3>>"$2"' sh "$1" "$2"; }
for n in 1 2 3; do write "$1" `+disk.Dir+`/$n & done; while [ "$(wc -l <"$1/pids")" -lt 3 ]; do sleep 0.01; done
echo $$ >>"$1/pids"; exec 3>>`+disk.Dir+`/own; echo written; rm "$1/pids"`, "5s")
	if err := os.WriteFile(filepath.Join(a.dir, "pids"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	thaw := disk.Freeze()
	if r := a.result("{}"); !strings.HasPrefix(r.Error, "4 killed processes have not ended") || r.Status != -1 {
		t.Errorf("%+v", r)
	}
	for range 2 {
		if r := a.result("{}"); !strings.HasPrefix(r.Error, "not started: 4 killed processes have not ended") {
			t.Errorf("%+v", r)
		}
	}
	b := start(t, "echo $$ >>\"$1/pids\"; exec 3>>"+disk.Dir+"/other", "10s")
	if err := b.runner.Send("x", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); len(b.pids()) == 0 && time.Since(begin) < time.Minute; {
		time.Sleep(10 * time.Millisecond)
	}
	b.runner.Close()
	if err := <-b.ended; err != nil {
		t.Error("the end of a worker:", err)
	}
	thaw()
	a.gone("the disk answers again")
	b.gone("the disk answers again")
	if err := os.WriteFile(filepath.Join(a.dir, "pids"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; {
		r := a.result("{}")
		if r.Output == "written" && r.Error == "" {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%+v", r)
		}
	}
}
