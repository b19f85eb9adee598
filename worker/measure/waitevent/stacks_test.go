package waitevent

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

func TestParseStacks(t *testing.T) {
	for text, want := range map[string]waits.StackOptions{
		"1/1": {Every: 1}, "1/100": {Every: 100}, ">10ms": {Longer: 10 * time.Millisecond}, "> 1s": {Longer: time.Second},
	} {
		if got, err := ParseStacks(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1/0", "1/-3", "2/3", "1/x", "10ms", ">", ">0s", ">-1s", ">10"} {
		if got, err := ParseStacks(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// TestStacks compares the stacks of waits with the counts of the same run: each wait of one kind has a stack that leads
// from its function to the program's start.
func TestStacks(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("stacks of waits are copied on x86_64 only")
	}
	const calls, each = 100, 2 * time.Millisecond
	bins := pgtest.BinDirs(t)
	bins = slices.Compact([]string{bins[0], bins[len(bins)-1]})
	for _, bin := range bins {
		t.Run(pgtest.Version(t, bin), func(t *testing.T) {
			w := watch(t, bin, pgtest.Options{Conf: []string{"compute_query_id = on"}}, waits.Options{Method: waits.Exact})
			for name, o := range map[string]waits.StackOptions{
				"all": {Every: 1}, "longer": {Longer: each}, "none so long": {Longer: time.Hour},
			} {
				t.Run(name, func(t *testing.T) {
					provider, err := waits.Open(w.Target, waits.Options{Method: waits.Exact, Queries: true, Stacks: o})
					if err != nil {
						t.Fatal(err)
					}
					defer provider.Close()
					w := watched{w.Server, w.server, provider}
					c := w.server.Connect(t, "postgres", "postgres")
					capturer, err := capture.New(capture.Config{AwaitNames: true, LinesWait: time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					p := w.NewStackProfile(capturer, o)
					for range calls {
						if _, err := c.Exec(t.Context(), "SELECT pg_sleep(0.002)"); err != nil {
							t.Fatal(err)
						}
						p.Add(w.provider.(waits.Stacker).Stacks())
					}
					row := w.totals(t)["Timeout/PgSleep"]
					p.Add(w.provider.(waits.Stacker).Stacks())
					checkSleeps(t, p.Profile(time.Second), name, row)
				})
			}
		})
	}
}

// TestBackendTypesOfStacks: samples have the types of processes whose type is known.
func TestBackendTypesOfStacks(t *testing.T) {
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := named(t).NewStackProfile(capturer, waits.StackOptions{Every: 1})
	p.add(&waits.Stack{PID: 1}, &backtrace.Thread{})
	p.add(&waits.Stack{PID: 2}, &backtrace.Thread{})
	p.SetBackendTypes(func(pid int) string { return []string{1: "walwriter", 2: ""}[pid] })
	if a, b := p.profile.Sample[0].Label["backend_type"], p.profile.Sample[1].Label["backend_type"]; !slices.Equal(a, []string{"walwriter"}) || b != nil {
		t.Errorf("%q, %q", a, b)
	}
}

// TestSamplesBounded: stacks beyond the largest number of samples count in a sample of their event.
func TestSamplesBounded(t *testing.T) {
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := named(t)
	p := s.NewStackProfile(capturer, waits.StackOptions{Every: 1})
	sleep, read := event(t, s, "Timeout", "PgSleep"), event(t, s, "Client", "ClientRead")
	for pid := range maxSamples + 10 {
		p.add(&waits.Stack{PID: 1 + pid, Event: sleep, Took: time.Millisecond}, &backtrace.Thread{})
	}
	p.add(&waits.Stack{PID: 1, Event: read, Took: time.Millisecond}, &backtrace.Thread{})
	list := p.Profile(time.Second).Sample
	if len(list) != maxSamples+2 || p.Joined != 11 {
		t.Fatalf("%d samples, %d joined", len(list), p.Joined)
	}
	for i, want := range []int64{10, 1} {
		one := list[maxSamples+i]
		if name := one.Location[0].Line[0].Function.Name; one.Value[0] != want || one.Value[1] != want*1e6 || one.Label["pid"] != nil ||
			len(one.Location) != 1 || name != "[too many stacks]" {
			t.Errorf("%+v of %s", one, name)
		}
	}
}

// checkSleeps compares the samples of PgSleep with its row.
func checkSleeps(t *testing.T, p *profile.Profile, name string, row Row) {
	t.Helper()
	if err := p.CheckValid(); err != nil && len(p.Sample) > 0 {
		t.Fatal(err)
	}
	var count, total int64
	for _, s := range p.Sample {
		if s.Label["wait_event"][0] != "PgSleep" {
			continue
		}
		count, total = count+s.Value[0], total+s.Value[1]
		var names []string
		for _, l := range s.Location {
			name := l.Line[len(l.Line)-1].Function.Name
			if names = append(names, name); strings.HasPrefix(name, "postgres+0x") && !strings.HasSuffix(name, "]") {
				t.Errorf("%s has no note, such as the file that it is in", name)
			}
		}
		if got := s.Label[LabelPhrase]; !slices.Equal(got, []string{"sleeps in pg_sleep"}) {
			t.Errorf("phrase %q", got)
		}
		if !slices.Contains(names, "pg_sleep") || names[len(names)-1] != "_start" || len(s.Label["query_id"]) != 1 {
			t.Errorf("%q, %v", names, s.Label)
		}
	}
	want, time := int64(row.Calls), row.Total.Nanoseconds()
	if name == "none so long" {
		want, time = 0, 0
	}
	if count != want || total != time {
		t.Errorf("%d stacks with %d ns, want %d with %d", count, total, want, time)
	}
}
