package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

// tooSlow matches the reports of commands about data that a slow disk or a busy machine has not given within a time limit.
var tooSlow = regexp.MustCompile(`(?:read|stopped|end) in time|there was no time for|takes too long to read|deadline exceeded|` +
	`the kernel does not return from reading|the server did not answer`)

// run runs the command line and returns its exit status and output. If a part is missing only because a time limit has ended, run
// repeats the command: the slow read continues in the background, so a later call has the data. A command that reads files gives the
// same data each time, and is not repeated.
func run(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	readsFiles := slices.Contains([]string{"history", "report", "decode"}, args[0]) || args[0] == "incident" && !slices.Contains(args, "take")
	for late := time.Now().Add(pgtest.Patience); ; time.Sleep(20 * time.Millisecond) {
		var out, errs bytes.Buffer
		status = Main("1.2.3", args, &out, &errs)
		slow := tooSlow.Match(out.Bytes()) || tooSlow.Match(errs.Bytes())
		if !slow || readsFiles || time.Now().After(late) {
			return status, out.String(), errs.String()
		}
		t.Logf("%s again: %.200s", args, errs.String())
	}
}

// succeeds runs the command line and returns the standard output. It expects the exit status 0.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := run(t, args...)
	if status != exitOK {
		t.Fatalf("%s: status %d, %s", args, status, stderr)
	}
	return stdout
}

// settles calls look until its result is empty. The result says how the state differs from the expected one. The expected state must
// last, but a single look may miss it: a waiting session wakes up for an instant to search for a deadlock.
func settles(t *testing.T, look func() string) {
	t.Helper()
	differs := ""
	for late := time.Now().Add(pgtest.Patience); time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
		if differs = look(); differs == "" {
			return
		}
	}
	t.Errorf("after %s: %s", pgtest.Patience, differs)
}

// TestCaptureNoProcess asks for a process id that is above the kernel's limit.
func TestCaptureNoProcess(t *testing.T) {
	status, stdout, stderr := run(t, "capture", "4194305")
	if status != 1 || stdout != "" || stderr != "pg_stat_backtrace: there is no process 4194305\n" {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

// sleeper is a process to capture, asleep.
func sleeper(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	pgtest.Wait(t, "a process asleep", func() bool {
		where, err := process.WaitChannel(pid, pid)
		return err == nil && strings.Contains(where, "nanosleep")
	})
	return strconv.Itoa(pid)
}

// asleep waits until a process of sleeper sleeps. After a stop, the process calls the interrupted system call again. A look before
// that finds it one instruction earlier.
func asleep(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "process "+pid+" asleep", func() bool {
		stat, err := process.ReadStat(n)
		return err == nil && stat.State == 'S'
	})
}

func TestCaptureNonStop(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	status, stdout, stderr := run(t, "capture", "--nonstop", pid)
	if status != 0 || !strings.HasPrefix(stdout, "process "+pid+", not stopped\n#0 ") ||
		!strings.Contains(stdout, "[not stopped, engine blocked]") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = run(t, "capture", "--nonstop", "--threads", "--format", "json", pid)
	if status != 0 || !strings.Contains(stdout, `"engine":"blocked"`) || !strings.Contains(stdout, `"pause_us":0,`) {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

// TestCaptureStopsNoSleeper: a process that sleeps is stopped only with --stop.
func TestCaptureStopsNoSleeper(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	pgtest.Wait(t, "a capture without a stop", func() bool { // a busy host may take too long to look
		status, stdout, stderr := run(t, "capture", pid)
		if status != 0 || strings.Contains(stdout, "[not stopped") {
			t.Fatalf("status %d, %q, %q", status, stdout, stderr)
		}
		return strings.HasPrefix(stdout, "process "+pid+", not stopped\n#0 ")
	})
	status, stdout, stderr := run(t, "capture", "--stop", pid)
	if status != 0 || !strings.HasPrefix(stdout, "process "+pid+", stopped for ") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args   []string
		status int
		stderr string
	}{
		{[]string{"--help"}, 0, ""},
		{[]string{"--version"}, 0, ""},
		{[]string{"capture", "--help"}, 0, ""},
		{[]string{"completion", "bash"}, 0, ""},
		{[]string{"captur", "1"}, 2, "there is no command \"captur\"; did you mean capture?\nTry \"pg_stat_backtrace --help\"."},
		{[]string{"capture", "--core", "x", "1"}, 2, "--core and process ids exclude each other"},
		{[]string{"capture", "--core", "x", "--repeat", "2"}, 2, "--repeat is for processes"},
		{[]string{"capture", "--exe", "x", "1"}, 2, "--exe and --sysroot are for --core"},
		{[]string{"capture", "--core", "/nonexistent"}, 1, "no such file"},
		{[]string{"capture", "--core", "/bin/sh"}, 1, "not a core file"},
		{[]string{"capture", "x"}, 2, `"x" is not a process id`},
		{[]string{"capture", "--", "-1"}, 2, `"-1" is not a process id`},
		{[]string{"capture", "0"}, 2, `"0" is not a process id`},
		{[]string{"capture", "99999999999"}, 2, "is not a process id"},
		{[]string{"capture", "--format", "xml", "1"}, 2, `not "xml"`},
		{[]string{"capture", "--repeat", "0", "1"}, 2, "--repeat"},
		{[]string{"capture", "--max-frames", "0", "1"}, 2, "--max-frames"},
		{[]string{"capture", "--stop", "--nonstop", "1"}, 2, "--stop cannot be used with --nonstop"},
		{[]string{"capture", "--nonsense", "1"}, 2, "capture has no flag --nonsense\nTry \"pg_stat_backtrace capture --help\"."},
		{[]string{"capture", "--nonstp", "1"}, 2, "capture has no flag --nonstp; did you mean --nonstop?"},
		{[]string{"xyzzy"}, 2, "there is no command \"xyzzy\"\n"},
		{[]string{"version"}, 0, ""},
		{[]string{"worker", "host=/nonexistent nonsense=1"}, 2, `invalid connection option "nonsense"`},
		{[]string{"worker", "-D", "/nonexistent", "postgres://h/?jit=x"}, 2, `invalid connection option "jit"`},
		{[]string{"worker", "gssencmode=require"}, 2, "not supported by this program"},
		{[]string{"worker", "main"}, 2, `missing "=" after "main"`},
		{[]string{"worker", "service=nowhere"}, 2, `definition of service "nowhere" not found`},
		{[]string{"doctor", "keepalives_idle=x"}, 2, "invalid integer value"},
		{[]string{"profile", "x"}, 2, `"x" is not a process id`},
		{[]string{"profile", "--format", "xml", "1"}, 2, "--format must be one of text, json, folded"},
		{[]string{"profile", "--rate", "0", "1"}, 2, "--rate"},
		{[]string{"profile", "--rate", "NaN", "1"}, 2, "--rate"},
		{[]string{"profile", "--rate", "1001", "1"}, 2, "from 1 to 1000"},
		{[]string{"profile", "--rate", "1e-12", "1"}, 2, "--rate"},
		{[]string{"profile", "--duration", "-1s", "1"}, 2, "--duration"},
		{[]string{"profile", "--max-frames", "0", "1"}, 2, "--max-frames"},
		{[]string{"profile", "--top", "0", "1"}, 2, "--top"},
		{[]string{"profile", "2147483647"}, 1, "there is no process 2147483647"},
		{[]string{"nonsense"}, 2, "there is no command"},
		{[]string{"worker", "a", "b"}, 2, "wrong number of arguments, 2: the usage is"},
		{[]string{"worker", "--log-level", "loud"}, 2, "--log-level"},
		{[]string{"worker", "--rate", "0"}, 2, "--rate must be a positive number, not 0; to lock a role out"},
		{[]string{"worker", "--rate", "NaN"}, 2, "--rate must be a positive number"},
		{[]string{"worker", "--burst", "-1"}, 2, "--burst must be at least 1"},
		{[]string{"worker", "--concurrency", "-3"}, 2, "--concurrency must be from 1 to 256, not -3"},
		{[]string{"worker", "--concurrency", "1000000"}, 2, "--concurrency must be from 1 to 256"},
		{[]string{"worker", "--sessions", "1"}, 2, "--sessions must be from 2 to 100, not 1"},
		{[]string{"worker", "--sessions", "100000"}, 2, "--sessions must be from 2 to 100"},
		{[]string{"worker", "--all", "--uid", "-1"}, 2, "--uid must be a user id from 0 to 4294967294"},
		{[]string{"worker", "--all", "--uid", "99999999999"}, 2, "--uid must be a user id"},
		{[]string{"worker", "-D", "/x", "--listen", "127.0.0.1:80"}, 2, "the port must be 1024 or higher, or 0 for any free port"},
		{[]string{"worker", "--all", "--listen", "127.0.0.1:1023"}, 2, "the port must be 1024 or higher"},
		{[]string{"worker", "--context", "everyone"}, 2, "--context must be superuser, all or off"},
		{[]string{"worker", "-D", "/nonexistent"}, 1, "the directory /nonexistent does not exist"},
		{[]string{"capture", "2147483647"}, 1, "there is no process 2147483647"},
		{[]string{"capture", strconv.Itoa(os.Getpid())}, 1, "cannot capture its own stack"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := run(t, tt.args...)
			if status != tt.status || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d, want %d; stderr %q, want %q", status, tt.status, stderr, tt.stderr)
			}
			if status == 0 && stdout == "" {
				t.Error("nothing on stdout")
			}
		})
	}
}

func TestCaptureFormats(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	status, text, stderr := run(t, "capture", pid)
	if status != 0 || !strings.Contains(text, "\n#0 ") || !strings.Contains(text, "nanosleep") {
		t.Errorf("text: status %d, %q, %q", status, text, stderr)
	}
	for _, format := range []string{"brief", "short"} {
		status, brief, _ := run(t, "capture", "--format", format, pid)
		if ok, _ := regexp.MatchString("^process "+pid+"\n  [^ ]*nanosleep.*\n(  .*without a name.*\n)?$", brief); status != 0 || !ok {
			t.Errorf("%s: status %d, %q", format, status, brief)
		}
	}
	status, folded, _ := run(t, "capture", "--format", "folded", "--repeat", "3", pid)
	if ok, _ := regexp.MatchString(`^sleep(;[^ ;]+)+;[^ ;]*nanosleep[^ ;]* 3\n$`, folded); status != 0 || !ok {
		t.Errorf("folded: status %d, %q", status, folded)
	}
	other := sleeper(t)
	status, folded, _ = run(t, "capture", "--format", "folded", pid, other)
	for _, p := range []string{pid, other} {
		if status != 0 || strings.Count(folded, "\n") != 2 || !strings.Contains(folded, "sleep-"+p+";") {
			t.Errorf("folded: status %d, process %s, %q", status, p, folded)
		}
	}
	status, out, _ := run(t, "capture", "--format", "json", "--repeat", "3", pid)
	if status != 0 || strings.Count(out, "\n") != 3 {
		t.Errorf("json: status %d, %q", status, out)
	}
	for line := range strings.Lines(out) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

// TestCaptureGoesOn checks that a process that cannot be captured does not
// keep the others from being.
func TestCaptureGoesOn(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	status, stdout, stderr := run(t, "capture", "2147483647", pid)
	if status != 1 || !strings.Contains(stdout, "process "+pid) || !strings.Contains(stderr, "2147483647") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	status, out, stderr := run(t, "capture", "--stop", "--stats", "--warm-up", "5", "--repeat", "20", "--interval", "1ms",
		sleeper(t))
	var got struct {
		Count     int                `json:"count"`
		Pause     map[string]float64 `json:"pause_us"`
		Unwind    map[string]float64 `json:"unwind_us"`
		Symbolize map[string]float64 `json:"symbolize_us"`
		Context   map[string]float64 `json:"context_us"`
		Total     map[string]float64 `json:"total_us"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || status != 0 {
		t.Fatalf("status %d, %v: %q, %q", status, err, out, stderr)
	}
	if got.Count != 20 {
		t.Errorf("count %d", got.Count)
	}
	for name, q := range map[string]map[string]float64{
		"pause": got.Pause, "unwind": got.Unwind, "symbolize": got.Symbolize, "context": got.Context,
		"total": got.Total,
	} {
		if !(q["p50"] > 0 && q["p50"] <= q["p99"] && q["p99"] <= q["max"]) {
			t.Errorf("%s: %v", name, q)
		}
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var s stats
	for i := range 100 {
		s.add(&backtrace.Trace{Pause: time.Duration(100-i) * time.Microsecond})
	}
	if got := newQuantiles(s.pause); got != (quantiles{P50: 50, P99: 99, Max: 100}) {
		t.Errorf("got %+v", got)
	}
	if got := newQuantiles([]time.Duration{7000}); got != (quantiles{P50: 7, P99: 7, Max: 7}) {
		t.Errorf("one value: %+v", got)
	}
}

// TestHostileName: whatever a program is called, no command prints characters that drive a terminal or turn the order
// of text.
func TestHostileName(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a\u202e\x1b[31mb\x7f\u2066.so")
	if err := pgtest.WriteProgram(path, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pid := strconv.Itoa(cmd.Process.Pid)
	for _, arguments := range []string{
		"capture", "capture --threads", "capture --format json", "capture --format folded",
		"capture --format compressed", "symbols", "symbols --format json", "memory", "memory --format json",
		"trace main", "trace nothing",
		"trace libc:clock_nanosleep --duration 50ms", "trace libc:clock_nanosleep --duration 50ms --format json",
		"symbols " + path, "symbols --fetch --debuginfod " + noServer + " --debuginfod-cache " + t.TempDir(),
		"trace x+0x10 --duration 50ms", "trace a\u202e\x1b[31mb\x7f\u2066.so:main",
	} {
		args := append(strings.Split(arguments, " "), pid)
		_, stdout, stderr := run(t, args...)
		if at := strings.IndexFunc(stdout+stderr, func(r rune) bool {
			return r != '\n' && r != '\t' && !render.VisibleRune(r)
		}); at >= 0 {
			t.Errorf("%s: %q", arguments, stdout+stderr)
		}
	}
}
