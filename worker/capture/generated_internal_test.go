package capture

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestSearchedFrames checks that call frame information found near generated code gives the same stack as the
// registered object. It does so with a stop and without one.
func TestSearchedFrames(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: not with -short")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
			"jit = on", "jit_above_cost = 0", "jit_debugging_support = on", "max_parallel_workers_per_gather = 0",
		}})
		conn := server.Connect(t, server.User, "postgres")
		var available bool
		if err := conn.QueryRow(t.Context(), "SELECT pg_jit_available()").Scan(&available); err != nil {
			t.Fatal(err)
		}
		if !available {
			t.Skip("this server was built without LLVM, or its library is not installed")
		}
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		t.Cleanup(func() { cancel(); <-done })
		pid := int(conn.PgConn().PID())
		go func() {
			defer close(done)
			_ = conn.PgConn().Exec(ctx,
				"SELECT sum(length(md5((a * b)::text))) FROM generate_series(1, 1000000) a, generate_series(1, 10000) b").Close()
		}()
		by, searched := newCapturer(t), newCapturer(t)
		through := 0
		for deadline := time.Now().Add(pgtest.Patience); through < 5 && time.Now().Before(deadline); {
			stopped(t, pid, func() {
				registered := frames(t, by, pid, Options{})
				forgetDescriptors(t, searched, pid)
				plain := frames(t, searched, pid, Options{})
				if !slices.ContainsFunc(registered, func(f backtrace.Frame) bool { return f.Module == naming.GeneratedModule }) {
					return
				}
				through++
				samePCs(t, registered, plain)
				for _, c := range []*Capturer{by, searched} {
					// Without a stop the frame pointer is not known, and the stack may end where it is needed.
					seen := frames(t, c, pid, Options{NonStop: true})
					whole := registered[:min(len(seen), len(registered))]
					if !slices.EqualFunc(whole, seen, func(a, b backtrace.Frame) bool { return a.Address == b.Address }) {
						t.Errorf("without a stop the stack differs:\n%v\n%v", registered, seen)
					}
				}
				if slices.ContainsFunc(plain, func(f backtrace.Frame) bool {
					return f.Module == naming.GeneratedModule && f.Function != ""
				}) {
					t.Error("without the registered object a function has a name")
				}
			})
		}
		if through < 5 {
			t.Errorf("only %d stacks went through generated code", through)
		}
	})
}

// stopped stops a process, runs f, and then lets the process run for a moment.
func stopped(t *testing.T, pid int, f func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the backend to stop", func() bool {
		st, err := process.ReadStat(pid)
		return err == nil && st.State == 'T'
	})
	f()
	before := switches(t, pid)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the backend to run", func() bool { return switches(t, pid) != before })
}

func switches(t *testing.T, pid int) uint64 {
	t.Helper()
	st, err := process.ReadTaskStatus(pid, pid)
	if err != nil {
		t.Fatal(err)
	}
	return st.InvoluntarySwitches + st.VoluntarySwitches
}

func newCapturer(t *testing.T) *Capturer {
	t.Helper()
	c, err := New(Config{AwaitNames: true, LinesWait: time.Minute}) // names do not differ between two captures
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// forgetDescriptors makes a capturer blind for GDB's JIT interface.
func forgetDescriptors(t *testing.T, c *Capturer, pid int) {
	t.Helper()
	maps, err := process.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	sp := c.processes.Open(pid, 0, maps)
	_ = sp.Descriptors()
	for i := range maps {
		if maps[i].Perms&process.Exec != 0 && maps[i].Inode != 0 {
			if f := sp.Resolve(i); f.Module != nil {
				f.Module.JIT = 0
			}
		}
	}
}

func frames(t *testing.T, c *Capturer, pid int, o Options) []backtrace.Frame {
	t.Helper()
	o.Deadline = pgtest.Patience
	tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr.Threads[0].Frames
}

func samePCs(t *testing.T, a, b []backtrace.Frame) {
	t.Helper()
	if !slices.EqualFunc(a, b, func(a, b backtrace.Frame) bool {
		return a.Address == b.Address && a.Module == b.Module && a.Note == b.Note
	}) {
		t.Errorf("stacks differ:\n%v\n%v", a, b)
	}
}

// TestMergedPieces checks that ranges which touch are joined, and that no byte is lost.
func TestMergedPieces(t *testing.T) {
	for _, c := range []struct {
		name     string
		in, want []snapshot.Range
	}{
		{"none", nil, nil},
		{"one", []snapshot.Range{{Address: 10, Length: 5}}, []snapshot.Range{{Address: 10, Length: 5}}},
		{"touching, not in order", []snapshot.Range{{Address: 4000, Length: 96}, {Address: 3000, Length: 1000}},
			[]snapshot.Range{{Address: 3000, Length: 1096}}},
		{"one in another", []snapshot.Range{{Address: 0, Length: 900}, {Address: 10, Length: 5}},
			[]snapshot.Range{{Address: 0, Length: 900}}},
		{"far apart", []snapshot.Range{{Address: 9000, Length: 1}, {Address: 10, Length: 5}},
			[]snapshot.Range{{Address: 10, Length: 5}, {Address: 9000, Length: 1}}},
	} {
		if got := naming.MergeRanges(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	w := naming.JITLocations{}
	o := naming.JITLocations{Frames: []symbol.JITSpan{{Start: 1, End: 2}}, Pieces: []snapshot.Range{{Address: 1, Length: 1}}}
	if !w.Add(&o) || w.Add(&o) {
		t.Error("what is new is not told from what is known")
	}
}
