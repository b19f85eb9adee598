package incident

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestNamesOfGeneratedCode expects that a bundle has no names of code that was compiled at run time, in stacks and in the profile.
func TestNamesOfGeneratedCode(t *testing.T) {
	t.Parallel()
	const name = "LazyCompile:*secret /fn.js:3"
	stack := recorder.StackOf(&backtrace.Trace{Threads: []backtrace.Thread{{Frames: []backtrace.Frame{
		{Function: name, Module: "[anon]", Address: 0x7001}, {Module: "[anon]", Address: 0x7002, Offset: 2},
		{Function: "ExecScan", Module: "postgres", Address: 0x5001, ModuleOffset: 1},
	}}}})
	location := func(function string, m *profile.Mapping) *profile.Location {
		return &profile.Location{Address: 0x7001, Mapping: m, Line: []profile.Line{{Function: &profile.Function{Name: function}}}}
	}
	g := groups{}
	g.fold(&profile.Profile{SampleType: []*profile.ValueType{{Type: "wall"}}, Sample: []*profile.Sample{{Value: []int64{1}, Location: []*profile.Location{
		location(name, nil), location(name, &profile.Mapping{File: "[anon]"}), location("[anon]+0x2", &profile.Mapping{File: "[anon]"}),
		location("ExecScan", &profile.Mapping{File: "/usr/bin/postgres"}), location("memcpy", &profile.Mapping{File: "[vdso]", BuildID: "01"}),
	}}}})
	list, _ := g.list()
	clean, _ := Anonymous(&Incident{Stacks: []ProcessStack{{Stack: stack}}, Profile: &Profile{Stacks: list}})
	for got, want := range map[string]string{
		strings.Join(clean.Stacks[0].Stack.Frames, " "):   "jit:function_1 [anon]+0x2 ExecScan",
		strings.Join(clean.Profile.Stacks[0].Frames, " "): "jit:function_1 jit:function_1 [anon]+0x2 ExecScan memcpy",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestProfileFold adds up the samples of a profile: idle sessions do not count, and stacks beyond the limits are counted.
func TestProfileFold(t *testing.T) {
	t.Parallel()
	function := func(name string) *profile.Location {
		return &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}
	}
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples"}, {Type: "wall", Unit: "nanoseconds"}}}
	add := func(pid, state, wait, event string, seconds int64, frames ...*profile.Location) {
		s := &profile.Sample{Value: []int64{1, seconds * 1e9}, Location: frames, Label: map[string][]string{
			"pid": {pid}, "state": {state}, "backend_type": {"client backend"},
		}}
		if wait != "" {
			s.Label["wait_event_type"], s.Label["wait_event"] = []string{wait}, []string{event}
		}
		p.Sample = append(p.Sample, s)
	}
	wait, main := function("WaitOnLock"), function("main")
	add("1", "active", "Lock", "tuple", 3, wait, main)
	add("2", "active", "Lock", "tuple", 4, wait, main)
	add("3", "idle", "Client", "ClientRead", 100, main)
	add("4", "", "Activity", "WalWriterMain", 100, main)
	add("5", "active", "", "", 1, main)
	add("6", "idle in transaction", "Client", "ClientRead", 2, main)
	for i := range 2 * maxProfileGroups {
		add("7", "active", "", "", 0, function(fmt.Sprint("f", i)))
	}
	g := groups{}
	g.fold(p)
	list, leftOut := g.list()
	if len(list) != maxProfileStacks || len(list)+leftOut > maxProfileGroups+10 {
		t.Errorf("%d stacks, %d left out", len(list), leftOut)
	}
	want := ProfileStack{Seconds: 7, Processes: 2, Type: "client backend", Wait: "Lock:tuple", Frames: []string{"WaitOnLock", "main"}}
	if fmt.Sprint(list[0]) != fmt.Sprint(want) || list[1].Wait != "Client:ClientRead" || list[1].Seconds != 2 || list[2].Seconds != 1 {
		t.Errorf("%+v", list[:3])
	}
	i := &Incident{Profile: &Profile{Stacks: append([]ProfileStack{{Wait: "Extension:evil<b>", Frames: []string{
		"pl:secret() line 3", "plpgsql:secret(integer)", "sql:secret", "plperl:secret", "plpython:secret", "main",
	}}}, list...)}}
	clean, _ := Anonymous(i)
	if text := fmt.Sprint(*clean.Profile); strings.Contains(text, "secret") || !strings.Contains(text, "WaitOnLock") {
		t.Errorf("bundle: %s", text)
	}
	if page := string(Page(i)); strings.Contains(page, "evil<b>") || !strings.Contains(page, "7.00 s of 2 processes (client backend), waiting for Lock:tuple") {
		t.Errorf("page: %s", page)
	}
}
