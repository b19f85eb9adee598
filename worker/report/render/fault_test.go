package render_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

type faultTest struct {
	name  string
	err   error
	state string
	want  []string // parts of message, detail or hint
}

func faults() []faultTest {
	return []faultTest{
		{"exited", fmt.Errorf("x: %w", process.ErrExited), "55000", []string{"process with PID 4711 has exited"}},
		{
			"recycled", &process.RecycledError{PID: 4711, Property: "start time", Want: 1, Got: 2}, "42501",
			[]string{"PID 4711 now belongs to another process"},
		},
		{
			"traced", &process.TracedError{PID: 4711, Tracer: 99, Name: "gdb"}, "42501",
			[]string{"already being traced", "Its tracer is process 99 (gdb)."},
		},
		{
			"traced from another namespace", &process.TracedError{PID: 4711}, "42501",
			[]string{"already being traced", "Its tracer is in another PID namespace."},
		},
		{
			"yama",
			&process.PermissionError{PID: 4711, Reason: process.ReasonYama, Detail: "kernel.yama.ptrace_scope is 1"}, "42501",
			[]string{"the kernel refuses", "kernel.yama.ptrace_scope is 1.", "CAP_SYS_PTRACE"},
		},
		{
			"seccomp", &process.PermissionError{PID: 4711, Reason: process.ReasonSeccomp, Detail: "a filter is set"}, "42501",
			[]string{"A filter is set.", "seccomp profile"},
		},
		{
			"security module", &process.PermissionError{PID: 4711, Reason: process.ReasonUnknown}, "42501",
			[]string{"SELinux"},
		},
		{
			"writing its core file", fmt.Errorf("process 4711: %w", ptrace.ErrDumping), "55000",
			[]string{"process with PID 4711 has crashed", "capture --core"},
		},
		{
			"neither stopped nor seen", errors.Join(&process.TracedError{PID: 4711, Tracer: 99, Name: "gdb"},
				&observe.Error{PID: 4711, Blocked: errors.New("it moved"), Running: errors.New("it did not run")}),
			"42501",
			[]string{"Its tracer is process 99 (gdb). It could not be captured without a stop either: it moved; it did"},
		},
		{
			"not seen", &observe.Error{PID: 4711, After: time.Second, Attempts: 7, Blocked: errors.New("it moved")},
			"55000", []string{"without stopping it", "After 7 attempts in 1s: it moved.", "turn nonstop off"},
		},
		{
			"no sampling", &observe.Error{PID: 4711, Blocked: errors.New("it was awake"), Running: &process.PermissionError{
				PID: 4711, Reason: process.ReasonPerf, Detail: "kernel.perf_event_paranoid is 3 and CAP_PERFMON is missing",
			}},
			"42501", []string{"without stopping it", "kernel.perf_event_paranoid is 3", "Give the worker CAP_PERFMON"},
		},
		{"canceled", context.Canceled, "57014", []string{"canceled"}},
		{
			"thread", fmt.Errorf("process 4711: %w: a thread of process 4700", process.ErrInvalidPID), "22023",
			[]string{"thread of process 4700"},
		},
		{"unknown", errors.New("the moon is full"), "XX000", []string{"the moon is full"}},
		{"already worded", fmt.Errorf("x: %w", &render.Fault{SQLState: "53400", Message: "m"}), "53400", []string{"m"}},
	}
}

func late() []faultTest {
	return []faultTest{
		{"deadline", context.DeadlineExceeded, "55000", []string{"could not be stopped in time"}},
		{
			"D state", &ptrace.DeadlineError{PID: 4711, After: 3 * time.Second, State: 'D', Channel: "nfs_wait"}, "55000",
			[]string{"within 3s", "uninterruptible sleep in the kernel, in nfs_wait", "device or file system"},
		},
		{
			"no processor", &ptrace.DeadlineError{PID: 4711, After: 3 * time.Second, State: 'R'}, "55000",
			[]string{"within 3s", "runnable but got no processor", "unaffected", "/proc/loadavg"},
		},
	}
}

func unread() []faultTest {
	return []faultTest{
		{
			"a disk that does not answer", fmt.Errorf("x: %w", &backtrace.ReadingError{File: "postgres", After: 3 * time.Second}),
			"55000", []string{
				"stack of process with PID 4711 could not be read within 3s", `file "postgres", which`, "Retry",
			},
		},
		{
			"nobody can read it", &observe.Error{PID: 4711, Blocked: process.ErrUnreachable}, "55000",
			[]string{"without stopping it", "The kernel does not return from reading its memory", "/proc/4711/task/*/stack"},
		},
		{
			"nor stop it", errors.Join(&ptrace.DeadlineError{PID: 4711, After: time.Second, State: 'S'},
				&observe.Error{PID: 4711, Blocked: process.ErrUnreachable}),
			"55000", []string{"within 1s", "either: the kernel does not return", "/proc/4711/task/*/stack"},
		},
		{
			"nor was it tried", errors.Join(&ptrace.DeadlineError{PID: 4711, After: time.Second, State: 'S'}, process.ErrUnreachable),
			"55000", []string{"within 1s", "/proc/4711/task/*/stack"},
		},
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	for _, tt := range slices.Concat(faults(), late(), unread()) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := render.FaultOf(4711, tt.err)
			if f.SQLState != tt.state {
				t.Errorf("SQLSTATE %s, want %s", f.SQLState, tt.state)
			}
			all := f.Message + "\n" + f.Detail + "\n" + f.Hint
			for _, part := range tt.want {
				if !strings.Contains(all, part) {
					t.Errorf("%q lacks %q", all, part)
				}
			}
			checkStyle(t, f)
		})
	}
}

var sentences = regexp.MustCompile(`^([A-Z].*|[a-z]+[._].*)\.$`)

// checkStyle compares a fault with the Error Message Style Guide: a message is a phrase, detail and hint are sentences.
func checkStyle(t *testing.T, f *render.Fault) {
	t.Helper()
	if f.Message == "" || strings.HasSuffix(f.Message, ".") || strings.ContainsAny(f.Message, "\n\t") ||
		f.Message[0] >= 'A' && f.Message[0] <= 'Z' && !strings.HasPrefix(f.Message, "PID ") {
		t.Errorf("message is not in PostgreSQL's style: %q", f.Message)
	}
	for _, s := range []string{f.Detail, f.Hint} {
		if s != "" && !sentences.MatchString(s) {
			t.Errorf("not a sentence: %q", s)
		}
	}
}
