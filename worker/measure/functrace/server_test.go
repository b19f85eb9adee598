package functrace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestCallsOfServer: counts, stacks, arguments, conditions and durations of a server of each kind. By default, tests about
// the kernel and the tracer take only one of two servers.
func TestCallsOfServer(t *testing.T) {
	needProbes(t)
	dirs := binDirs(t)
	if len(dirs) > 2 {
		dirs = dirs[len(dirs)-2:] // the stripped one, and the newest one with symbols
	}
	selected := figure.Share(t, 2)
	for i, dir := range dirs {
		s := pgtest.Start(t, dir, pgtest.Options{Conf: []string{"max_connections = 1200"}})
		name := func(what string) string { return fmt.Sprintf("%s/%s", pgtest.Version(t, dir), what) }
		if stripped(t, dir) {
			name = func(what string) string { return fmt.Sprintf("%s-stripped/%s", pgtest.Version(t, dir), what) }
		}
		t.Run(name("count"), func(t *testing.T) { countExactly(t, s) })
		t.Run(name("new backends"), func(t *testing.T) { seeNewBackends(t, s) })
		t.Run(name("other server"), func(t *testing.T) { countOtherServers(t, s, dir) })
		t.Run(name("arguments"), func(t *testing.T) { readArguments(t, s) })
		t.Run(name("conditions"), func(t *testing.T) { obeyConditions(t, s) })
		t.Run(name("latency"), func(t *testing.T) { measureLatency(t, s) })
		t.Run(name("static probes"), func(t *testing.T) { traceStatic(t, s) })
		t.Run(name("names"), func(t *testing.T) { refuseNames(t, s) })
		for j, c := range []struct {
			what string
			test func(*testing.T, *pgtest.Server)
		}{
			{"two tracers", traceTwice}, {"ten tracers", traceTenTimes}, {"ended process", seeEnd},
			{"overhead", limitOverhead}, {"kill -9", leaveNoBreakpoint}, {"two capabilities", useTwoCapabilities},
		} {
			if selected(i + j) {
				t.Run(name(c.what), func(t *testing.T) { c.test(t, s) })
			}
		}
	}
}

// countExactly: each call of an SQL function is a hit, and each hit has its stack or is counted as one without.
func countExactly(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	other, execOther := backend(t, s)
	const n = 700
	tracer := open(t, functrace.Options{Functions: []string{"pg_backend_pid"}, PIDs: []int{pid}, StacksPerSecond: 100})
	r := during(t, tracer, nil, func() {
		exec(fmt.Sprintf("SELECT pg_backend_pid() FROM generate_series(1, %d)", n))
		execOther("SELECT pg_backend_pid()")
	})
	checkSums(t, r)
	f := &r.Functions[0]
	if sum := f.Total(); sum.Hits != n || sum.Skipped == 0 {
		t.Errorf("%d calls: %+v", n, sum)
	}
	if len(f.Processes) != 1 || f.Processes[0].PID != pid {
		t.Errorf("processes %+v, not only %d; %d was not to be traced", f.Processes, pid, other)
	}
	if len(f.Stacks) == 0 || !strings.HasPrefix(frames(&f.Stacks[0]), "pg_backend_pid ") ||
		!strings.Contains(frames(&f.Stacks[0]), " PostgresMain ") {
		t.Errorf("stacks: %s", stacks(f))
	}
	for i := range f.Stacks {
		if !f.Stacks[i].Thread.Whole {
			t.Errorf("a stack ends early (%s): %s", f.Stacks[i].Thread.Stop, frames(&f.Stacks[i]))
		}
	}
}

// seeNewBackends: backends that start while a server is traced are traced from their first call on, and connections do
// not fail.
func seeNewBackends(t *testing.T, s *pgtest.Server) {
	n := number("PGSB_TRACE_CONNECTIONS", pgtest.Extent(20, 40))
	tracer := open(t, functrace.Options{
		Functions: []string{"pg_backend_pid"}, Postmaster: s.PostmasterPID(), StacksPerSecond: 100_000,
	})
	pids := make(map[int]bool)
	r := during(t, tracer, nil, func() {
		var open []*pgx.Conn
		for range n {
			conn, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
			if err != nil {
				t.Errorf("a connection failed during a trace: %v", err)
				continue
			}
			open = append(open, conn)
			var pid int
			if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				t.Error(err)
			}
			pids[pid] = true
		}
		for _, conn := range open {
			_ = conn.Close(context.Background())
		}
	})
	checkSums(t, r)
	f := &r.Functions[0]
	// pgx asks nothing by itself, so each backend has called the function once.
	if sum := f.Total(); sum.Hits != uint64(n) || len(f.Processes) != n {
		t.Errorf("%d connections: %d hits in %d processes", n, sum.Hits, len(f.Processes))
	}
	for _, p := range f.Processes {
		if !pids[p.PID] {
			t.Errorf("process %d (%s) is none of the backends", p.PID, p.Title)
		}
	}
	// Equal stacks of several processes are kept once, because sessions may come and go for hours.
	kept := make(map[string]*backtrace.Thread)
	for i := range f.Stacks {
		text := fmt.Sprintf("%+v", f.Stacks[i].Thread.Frames)
		if first := kept[text]; first != nil && first != f.Stacks[i].Thread {
			t.Errorf("process %d has its own copy of a stack", f.Stacks[i].PID)
		}
		kept[text] = f.Stacks[i].Thread
	}
	if len(kept) > n/2 {
		t.Errorf("%d different stacks of %d equal calls", len(kept), n)
	}
}

// countOtherServers: calls in another server that runs the same program do not count as calls in the traced server. The
// result has their number.
func countOtherServers(t *testing.T, s *pgtest.Server, dir string) {
	_, exec := backend(t, s)
	_, execOther := backend(t, pgtest.Start(t, dir, pgtest.Options{}))
	const own, others = 3, 70
	tracer := open(t, functrace.Options{Functions: []string{"pg_backend_pid"}, Postmaster: s.PostmasterPID()})
	r := during(t, tracer, nil, func() {
		for range own {
			exec("SELECT pg_backend_pid()")
		}
		execOther(fmt.Sprintf("SELECT pg_backend_pid() FROM generate_series(1, %d)", others))
	})
	checkSums(t, r)
	if sum := r.Functions[0].Total(); sum.Hits != own {
		t.Errorf("%d calls: %+v", own, sum)
	}
	const format = "pg_backend_pid: not counted: %d hits in processes of other servers, which pay for the probe too"
	if !slices.ContainsFunc(r.Notes, func(note string) bool {
		var hits int
		_, err := fmt.Sscanf(note, format, &hits)
		return err == nil && hits >= others // other tests may have servers with the same program
	}) {
		t.Errorf("notes %q, want one of %d hits", r.Notes, others)
	}
}

// readArguments: the printed numbers and strings are the arguments of the calls.
func readArguments(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	tracer := open(t, functrace.Options{
		Functions: []string{"GetConfigOptionByName"}, PIDs: []int{pid},
		Arguments: []functrace.Argument{{Number: 1, Form: 's'}, {Number: 3, Form: 'b'}},
	})
	r := during(t, tracer, nil, func() {
		exec("SELECT current_setting('work_mem')")
		exec("SELECT current_setting('no.such', true)")
	})
	var got []string
	for _, one := range r.Functions[0].Stacks {
		got = append(got, one.Arguments)
	}
	slices.Sort(got)
	if want := []string{`arg1="no.such" arg3=1`, `arg1="work_mem" arg3=0`}; !slices.Equal(got, want) {
		t.Errorf("arguments %q, not %q", got, want)
	}
}

// obeyConditions: only calls that meet the condition count.
func obeyConditions(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	exec("SELECT length(repeat('x', 100000))") // fills caches
	conditions, err := functrace.ParseConditions("arg1>8192 && arg1<=100004")
	if err != nil {
		t.Fatal(err)
	}
	tracer := open(t, functrace.Options{
		Functions: []string{"palloc"}, PIDs: []int{pid}, Conditions: conditions,
		Arguments: []functrace.Argument{{Number: 1, Form: 'l'}}, StacksPerSecond: 100_000,
	})
	r := during(t, tracer, nil, func() { exec("SELECT length(repeat('x', 100000))") })
	f := &r.Functions[0]
	found := false
	for _, one := range f.Stacks {
		var n int
		if _, err := fmt.Sscanf(one.Arguments, "arg1=%d", &n); err != nil || n <= 8192 || n > 100004 {
			t.Errorf("a hit has %s", one.Arguments)
		}
		found = found || n == 100004 // the text and its header
	}
	if sum := f.Total(); !found || sum.Failed == 0 || sum.Hits > 10 {
		t.Errorf("hits %d, not meeting the condition %d: %s", sum.Hits, sum.Failed, stacks(f))
	}
}

// measureLatency: the durations of calls from entry to return.
func measureLatency(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	tracer, err := functrace.New(newCapturer(t), functrace.Options{
		Functions: []string{"pg_sleep"}, PIDs: []int{pid}, Calls: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	if err := tracer.Attach(probe.Cost{}); errors.Is(err, probe.ErrUnsupported) {
		t.Skipf("this kernel cannot time calls: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	r := during(t, tracer, nil, func() {
		exec("SELECT pg_sleep(0.1) FROM generate_series(1, 3)")
		// An error leaves the function without a return.
		cancelled := make(chan struct{})
		go func() {
			defer close(cancelled)
			s.Exec(t, fmt.Sprintf(`DO $$ BEGIN
				WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d AND wait_event = 'PgSleep') LOOP
					PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
				END LOOP;
				PERFORM pg_cancel_backend(%[1]d);
			END $$`, pid))
		}()
		exec("DO $$ BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END $$")
		<-cancelled
	})
	checkSums(t, r)
	f := &r.Functions[0]
	if sum := f.Total(); sum.Hits != 4 || f.Latency.Returns != 3 {
		t.Errorf("4 calls, of which 3 return: %d hits, %d returns", sum.Hits, f.Latency.Returns)
	}
	mean := time.Duration(f.Latency.Total / max(1, f.Latency.Returns))
	if mean < 100*time.Millisecond || mean > 30*time.Second || time.Duration(f.Latency.Longest) < mean {
		t.Errorf("mean %s, longest %s for calls that take 100 ms", mean, time.Duration(f.Latency.Longest))
	}
	var counted uint64
	for b, n := range f.Latency.Buckets {
		counted += n
		if n > 0 && b < 26 { // 2^27 ns are 134 ms
			t.Errorf("%d calls took less than %s", n, time.Duration(2)<<b)
		}
	}
	if counted != f.Latency.Returns {
		t.Errorf("the histogram has %d calls of %d", counted, f.Latency.Returns)
	}
}

// traceStatic: the static probes of a build, with their arguments; the reason where it has none.
func traceStatic(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	o := functrace.Options{
		Static: []string{"query-start"}, PIDs: []int{pid}, Arguments: []functrace.Argument{{Number: 1, Form: 's'}},
	}
	tracer, err := functrace.New(newCapturer(t), o)
	var find *functrace.FindError
	if !stripped(t, s.BinDir) && errors.As(err, &find) {
		t.Logf("this build has no static probes: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	if err := tracer.Attach(probe.Cost{}); err != nil {
		t.Fatal(err)
	}
	r := during(t, tracer, nil, func() {
		exec("SELECT 41 + 1")
		exec("SELECT 'a', 'b'")
	})
	checkSums(t, r)
	var got []string
	for _, one := range r.Functions[0].Stacks {
		got = append(got, one.Arguments)
	}
	slices.Sort(got)
	if want := []string{`arg1="SELECT 'a', 'b'"`, `arg1="SELECT 41 + 1"`}; !slices.Equal(got, want) {
		t.Errorf("arguments %q, not %q", got, want)
	}
	// The semaphore of a static probe is back at 0: a probe that is guarded by one has hits only while it is attached.
	sorts := open(t, functrace.Options{
		Static: []string{"sort__start"}, PIDs: []int{pid}, Arguments: []functrace.Argument{{Number: 3, Form: 'd'}},
	})
	r = during(t, sorts, nil, func() {
		exec("SELECT count(*) FROM (SELECT g FROM generate_series(1, 9) g ORDER BY -g) x")
	})
	if f := &r.Functions[0]; f.Total().Hits != 1 || f.Stacks[0].Arguments != "arg3=1" {
		t.Errorf("one sort with one key: %s", stacks(f))
	}
	// Every static probe can be found and attached.
	for _, name := range []string{"transaction__start", "lwlock__acquire", "buffer__read__start", "smgr__md__read__done"} {
		all := open(t, functrace.Options{Static: []string{name}, PIDs: []int{pid}, CountOnly: true})
		r := during(t, all, nil, func() { exec("SELECT count(*) FROM pg_class") })
		t.Logf("%s: %d sites, %d hits", name, r.Functions[0].Sites, r.Functions[0].Total().Hits)
		all.Close()
	}
}

// traceTwice: two traces of the same function at once see the same calls, though the second one times returns, and both
// have whole stacks.
func traceTwice(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	o := functrace.Options{Functions: []string{"standard_ExecutorStart"}, PIDs: []int{pid}, StacksPerSecond: 100_000}
	first := open(t, o)
	o.Calls, o.Functions = true, []string{"standard_ExecutorStart", "XLogInsert"}
	second := open(t, o)
	exec("CREATE TABLE IF NOT EXISTS two_tracers(a int)")
	var r2 *functrace.Result
	r1 := during(t, first, nil, func() {
		r2 = during(t, second, nil, func() {
			for range 50 {
				exec("INSERT INTO two_tracers VALUES (1)")
			}
		})
	})
	checkSums(t, r1)
	checkSums(t, r2)
	if a, b := r1.Functions[0].Total().Hits, r2.Functions[0].Total().Hits; a != b || a < 50 {
		t.Errorf("one trace counts %d calls, and the other one %d", a, b)
	}
	for _, f := range []*functrace.FunctionResult{&r1.Functions[0], &r2.Functions[0], &r2.Functions[1]} {
		for i := range f.Stacks {
			if text := frames(&f.Stacks[i]); !f.Stacks[i].Thread.Whole || !strings.Contains(text, " PostgresMain ") {
				t.Errorf("a stack is not whole (%s): %s", f.Stacks[i].Thread.Stop, text)
			}
		}
	}
}

// traceTenTimes: ten traces of one function at once see all calls.
func traceTenTimes(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	const n = 25
	calls := func() { exec(fmt.Sprintf("SELECT random() FROM generate_series(1, %d)", n)) }
	results := make([]*functrace.Result, 10)
	work := calls
	for i := range results {
		tracer := open(t, functrace.Options{Functions: []string{"drandom"}, PIDs: []int{pid}, StacksPerSecond: 100_000})
		inner := work
		work = func() { results[i] = during(t, tracer, nil, inner) }
	}
	work()
	for i, r := range results {
		checkSums(t, r)
		if sum := r.Functions[0].Total(); sum.Hits != n || sum.Stacks != n {
			t.Errorf("trace %d of %d calls: %+v", i, n, sum)
		}
	}
}

// seeEnd: if the traced process ends, the trace ends too, and its result has the figures of the process.
func seeEnd(t *testing.T, s *pgtest.Server) {
	conn, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	pid := int(conn.PgConn().PID())
	tracer := open(t, functrace.Options{Functions: []string{"pg_backend_pid"}, PIDs: []int{pid}})
	done := make(chan error, 1)
	var r *functrace.Result
	go func() {
		var err error
		r, err = tracer.Run(context.Background(), 5*time.Minute, nil)
		done <- err
	}()
	if _, err := conn.Exec(t.Context(), "SELECT pg_backend_pid()"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(pgtest.Patience):
		t.Fatal("the trace of an ended process goes on")
	}
	checkSums(t, r)
	if n := r.Functions[0].Total().Hits; n != 1 {
		t.Errorf("%d hits, not 1", n)
	}
	_, err = functrace.New(newCapturer(t), functrace.Options{Functions: []string{"pg_backend_pid"}, PIDs: []int{pid}})
	var find *functrace.FindError
	if !errors.As(err, &find) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a trace of an ended process: %v", err)
	}
}

// limitOverhead: a probe that costs too much is sampled, or removed, with a notice.
func limitOverhead(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	var mu sync.Mutex
	var notices []string
	tracer := open(t, functrace.Options{
		Functions: []string{"palloc"}, PIDs: []int{pid}, MaxOverhead: 0.02,
		Notice: func(text string) {
			mu.Lock()
			defer mu.Unlock()
			notices = append(notices, text)
		},
	})
	r := during(t, tracer, nil, func() {
		until := time.Now().Add(3 * time.Minute)
		for time.Now().Before(until) {
			exec("SELECT sum(length(repeat('x', g % 50))) FROM generate_series(1, 100000) g")
			mu.Lock()
			over := slices.ContainsFunc(notices, func(n string) bool { return strings.Contains(n, "was removed") })
			mu.Unlock()
			if over {
				return
			}
		}
		t.Error("the probe was not removed")
	})
	checkSums(t, r)
	if len(r.Notes) == 0 || len(r.Removed) != 1 || !slices.Contains(r.Notes, r.Removed[0]) {
		t.Errorf("the result does not say that the probe was removed: %q", r.Removed)
	}
	t.Log(r.Notes)
}

// addressOf returns the address in a process of the instruction that is probed for a function.
func addressOf(t *testing.T, pid int, function string) uint64 {
	t.Helper()
	list, err := newCapturer(t).Loaded(pid)
	if err != nil || len(list) == 0 {
		t.Fatalf("images of process %d: %v", pid, err)
	}
	found := list[0].Functions(function)
	if len(found) != 1 {
		t.Fatalf("%s: %+v", function, found)
	}
	return list[0].Bias + found[0].Addr
}

// codeAt reads some code of a process.
func codeAt(t *testing.T, pid int, address uint64) string {
	t.Helper()
	var code [32]byte
	n, err := process.ReadMemory(pid, address, code[:])
	if err != nil {
		t.Fatal(err)
	}
	return string(code[:n])
}

// leaveNoBreakpoint: the kernel removes the breakpoints of a killed trace, in old and new processes.
func leaveNoBreakpoint(t *testing.T, s *pgtest.Server) {
	pid, exec := backend(t, s)
	at := addressOf(t, pid, "standard_ExecutorStart")
	before := codeAt(t, pid, at)
	cmd := command(t, s, "trace", "standard_ExecutorStart", "-D", s.DataDir, "--duration", "5m")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	pgtest.Wait(t, "the breakpoint", func() bool { return codeAt(t, pid, at) != before })
	exec("SELECT 1")
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the end of the breakpoint", func() bool { return codeAt(t, pid, at) == before })
	exec("SELECT 1")
	young, execYoung := backend(t, s)
	execYoung("SELECT 1")
	if codeAt(t, young, at) != before {
		t.Error("a new process has a breakpoint of a killed trace")
	}
}

// command runs the program, as root if this process is root.
func command(t *testing.T, _ *pgtest.Server, args ...string) *exec.Cmd {
	t.Helper()
	return exec.Command(program, args...)
}

// useTwoCapabilities: the server's user with CAP_BPF and CAP_PERFMON can trace.
func useTwoCapabilities(t *testing.T, s *pgtest.Server) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a process capabilities")
	}
	uid, gid := s.OSUser()
	pid, exec := backend(t, s)
	cmd := command(t, s, "trace", "pg_backend_pid", strconv.Itoa(pid), "--duration", "1m", "--format", "json")
	const bpf, perfmon = 39, 38
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		AmbientCaps: []uintptr{bpf, perfmon},
	}
	cmd.Dir = "/"
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	at := addressOf(t, pid, "pg_backend_pid")
	before := codeAt(t, pid, at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	pgtest.Wait(t, "the breakpoint", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the command ended: %v\n%s", err, errs.String())
		default:
		}
		return codeAt(t, pid, at) != before
	})
	exec("SELECT pg_backend_pid()")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-ended // an interrupt is a failure, but the output until then is printed
	if !strings.Contains(out.String(), `"probe":"pg_backend_pid"`) || !strings.Contains(out.String(), `"hits":1,`) {
		t.Errorf("output: %s\nerrors: %s", out.String(), errs.String())
	}
}

// refuseNames: a function that cannot or must not be traced is refused, with the reason.
func refuseNames(t *testing.T, s *pgtest.Server) {
	conn := s.Connect(t, s.User, "postgres")
	pid := int(conn.PgConn().PID())
	if _, err := conn.Exec(t.Context(), "LOAD 'pg_stat_statements'"); err != nil {
		t.Logf("pg_stat_statements is loaded at the start of a server only: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "DO 'BEGIN NULL; END'"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		calls bool
		all   bool
		want  string // of the error; "": there is none
	}{
		{name: "XLogFlush"},
		{name: "postgres:XLogFlush"},
		{name: "plpgsql_call_handler"}, // of a library
		{name: "plpgsql:plpgsql_call_handler", calls: true},
		{name: "no_such_function", want: "no function of that name"},
		{name: "xlogflush", want: "Similar names: XLogFlush"},
		{name: "XLogFlsh", want: "Similar names: XLogFlush"},
		{name: "plpgsql:plpgsql_cal_handler", want: "Similar names: plpgsql_call_handler"},
		{name: "libnone:malloc", want: "no process has loaded libnone"},
		{name: "plpgsql:XLogFlush", want: "no function of that name"},
		{name: "_PG_init", want: "2 libraries have a function of that name"},
		{name: "libc:malloc"},
		{name: "libc:malloc", all: true, want: "every process of the host uses libc.so"},
		{name: "libc:strlen", want: "IFUNC"},
		{name: "postgres+0x10", want: "no function is known at that address"},
		{name: "nonsense+0x10", want: "no process has loaded nonsense"},
	} {
		o := functrace.Options{Functions: []string{c.name}, PIDs: []int{pid}, Calls: c.calls}
		if c.all {
			o.PIDs, o.Postmaster = nil, s.PostmasterPID()
		}
		tracer, err := functrace.New(newCapturer(t), o)
		if err == nil {
			tracer.Close()
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, not %q", c.name, err, c.want)
		}
	}
}

// TestHookedFunctionRefused: a function that only jumps to a module's hook is refused, and the hint names the function
// that does the work.
func TestHookedFunctionRefused(t *testing.T) {
	dir := pgtest.BinDir(t)
	s := pgtest.Start(t, dir, pgtest.Options{Conf: []string{"shared_preload_libraries = 'pg_stat_statements'"}})
	pid, _ := backend(t, s)
	_, err := functrace.New(newCapturer(t), functrace.Options{Functions: []string{"ExecutorStart"}, PIDs: []int{pid}})
	var find *functrace.FindError
	if !errors.As(err, &find) || find.Hint != "Trace standard_ExecutorStart." ||
		!strings.Contains(find.Reason, "pg_stat_statements.so") {
		t.Errorf("ExecutorStart with pg_stat_statements: %v", err)
	}
}

// frames prints the names of a stack's frames, innermost first, with a space behind each.
func frames(s *functrace.StackResult) string {
	var b strings.Builder
	for i := range s.Thread.Frames {
		b.WriteString(s.Thread.Frames[i].Name() + " ")
	}
	return b.String()
}

func stacks(f *functrace.FunctionResult) string {
	var b strings.Builder
	for i := range f.Stacks {
		fmt.Fprintf(&b, "\n%d %s %s", f.Stacks[i].Count, f.Stacks[i].Arguments, frames(&f.Stacks[i]))
	}
	return b.String()
}
