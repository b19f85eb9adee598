package profilefmt_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/profilefmt"
)

// checkJSON expects one line with a document that has every sample and no control character.
func checkJSON(t *testing.T, p *profile.Profile, out string) profilefmt.JSONProfile {
	t.Helper()
	var document profilefmt.JSONProfile
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&document); err != nil {
		t.Fatalf("%s: %.200q", err, out)
	}
	if len(document.Samples) != len(p.Sample) || strings.Count(out, "\n") != 1 {
		t.Errorf("%d samples of %d, %d lines", len(document.Samples), len(p.Sample), strings.Count(out, "\n"))
	}
	for i := range document.Samples {
		if n := len(document.Samples[i].Stack); n > 4097 {
			t.Errorf("a stack has %d frames", n)
		}
	}
	return document
}

// TestJSON compares a profile with its document.
func TestJSON(t *testing.T) {
	b := newBuilder("samples/count", "cpu/nanoseconds", "inuse_bytes/bytes", "CPU/nanoseconds", "/")
	b.add("main;/bin/postgres!work", []int64{1, 10, 0, 0, 5}, "pid=4711", "a\x1b=<\u202e>")
	b.add("/bin/postgres!inner<outer", []int64{3, math.MaxInt64, 4096, 1, 0})
	b.add("", []int64{0, -1, 0, 0, 0})
	b.TimeNanos, b.DurationNanos = time.Date(2026, 11, 28, 3, 0, 0, 5e8, time.UTC).UnixNano(), 1_500_000_000
	out := b.write(t, profilefmt.Options{Format: profilefmt.JSON, Title: "T", Subtitle: "S\n", SampleType: "cpu", Notes: []string{"n"}})
	got := checkJSON(t, &b.Profile, out)
	var names []string
	for _, v := range got.Values {
		names = append(names, v.Name)
	}
	if want := []string{"samples", "cpu_ns", "inuse_bytes", "cpu_ns_2", "value"}; !slices.Equal(names, want) || got.DefaultValue != "cpu_ns" {
		t.Errorf("values %q, default %s", names, got.DefaultValue)
	}
	for _, want := range []string{
		`{"title":"T","about":"S\\x0a","time":"2026-11-28T03:00:00.5Z","seconds":1.5,`, `"notes":["n"],"samples":[`,
		`{"values":{"cpu_ns":9223372036854775807,"cpu_ns_2":1,"inuse_bytes":4096,"samples":3},"stack":[` +
			`{"function":"inner","module":"postgres","file":"/src/a.c","line":7,"inlined":true},` +
			`{"function":"outer","module":"postgres","file":"/src/a.c","line":7}]},{"values":{"cpu_ns":10,`,
		`"labels":{"a\\x1b":"<\\u202e>","pid":"4711"}`, `{"values":{"cpu_ns":-1},"stack":[]}]}` + "\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nis not in\n%s", want, out)
		}
	}
}
