package profilefmt_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/profilefmt"
)

// builder makes profiles for tests from folded stacks.
type builder struct {
	profile.Profile

	locations map[string]*profile.Location
}

func newBuilder(types ...string) *builder {
	b := &builder{locations: make(map[string]*profile.Location)}
	for _, t := range types {
		name, unit, _ := strings.Cut(t, "/")
		b.SampleType = append(b.SampleType, &profile.ValueType{Type: name, Unit: unit})
	}
	return b
}

// mapping returns the mapping of a file.
func (b *builder) mapping(file string) *profile.Mapping {
	for _, m := range b.Mapping {
		if m.File == file {
			return m
		}
	}
	m := &profile.Mapping{
		ID: uint64(len(b.Mapping) + 1), File: file, Start: 0x1000, Limit: 0x100000, BuildID: "0123abcd",
	}
	b.Mapping = append(b.Mapping, m)
	return m
}

// location returns the location of a frame "file!name", or "name" without a mapping. Several names separated by "<" are
// inlined calls, the innermost first. An empty name gives a location without lines.
func (b *builder) location(frame string) *profile.Location {
	if loc := b.locations[frame]; loc != nil {
		return loc
	}
	loc := &profile.Location{ID: uint64(len(b.Location) + 1), Address: 0x1000 + uint64(len(b.Location))}
	names := frame
	if file, rest, ok := strings.Cut(frame, "!"); ok {
		loc.Mapping, names = b.mapping(file), rest
	}
	for name := range strings.SplitSeq(names, "<") {
		if name == "" {
			continue
		}
		fn := &profile.Function{ID: uint64(len(b.Function) + 1), Name: name, Filename: "/src/a.c"}
		b.Function = append(b.Function, fn)
		loc.Line = append(loc.Line, profile.Line{Function: fn, Line: 7})
	}
	b.Location = append(b.Location, loc)
	b.locations[frame] = loc
	return loc
}

// add adds a sample. The stack has the outermost frame first, separated by semicolons; labels are "key=value".
func (b *builder) add(stack string, values []int64, labels ...string) {
	s := &profile.Sample{Value: values, Label: make(map[string][]string)}
	for frame := range strings.SplitSeq(stack, ";") {
		if stack != "" {
			s.Location = append(s.Location, b.location(frame))
		}
	}
	slices.Reverse(s.Location)
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		s.Label[key] = []string{value}
	}
	b.Sample = append(b.Sample, s)
}

// write prints the profile and fails the test if that fails.
func (b *builder) write(t *testing.T, o profilefmt.Options) string {
	t.Helper()
	var out bytes.Buffer
	if err := profilefmt.Write(&out, &b.Profile, o); err != nil {
		t.Fatalf("Write as %s: %v", o.Format, err)
	}
	return out.String()
}

// odd is a profile with everything that is unusual.
func odd() *builder {
	b := newBuilder("samples/count", "cpu/nanoseconds")
	b.add("main;/bin/postgres!work", []int64{3, 3_000_000}, "backend_type=client backend", "database=app")
	b.add("main;/bin/postgres!work", []int64{1, 1_000_000}, "backend_type=client backend", "database=other")
	b.add("main;/bin/postgres!postgres+0x1234;/lib/libc.so.6!", []int64{2, 2_000_000})
	b.add("main;/bin/postgres!postgres+0x99 [static, in lock.c]", []int64{1, 500})
	b.add("main;/bin/postgres!inner<middle<outer", []int64{1, 900})
	b.add("a b;c;x\x1b[2J\u202e", []int64{1, 10})
	b.add("zero", []int64{0, 0})
	b.add("negative", []int64{-1, -70})
	b.add("", []int64{1, 60})
	return b
}

func TestFolded(t *testing.T) {
	got := odd().write(t, profilefmt.Options{
		Format: profilefmt.Folded, Root: []string{"backend_type"}, SampleType: "samples",
	})
	want := `[no_backend_type] 1
[no_backend_type];a_b;c;x\x1b[2J\u202e 1
[no_backend_type];main;[postgres:_static,in_lock.c] 1
[no_backend_type];main;[postgres];[libc.so.6] 2
[no_backend_type];main;outer;middle_[i];inner_[i] 1
[no_backend_type];negative -1
client_backend;main;work 4
`
	if got != want {
		t.Errorf("folded:\n%s\nwant:\n%s", got, want)
	}
}

func TestText(t *testing.T) {
	b := odd()
	b.DurationNanos = 2_500_000_000
	got := b.write(t, profilefmt.Options{
		Format: profilefmt.Text, Title: "Profile\x07 of 15/main", Notes: []string{"2 samples lost"}, Top: 2,
	})
	want := `Profile\x07 of 15/main
2 samples lost
9 samples, cpu 6.00 ms, duration 2.50 s

     SELF               TOTAL           FUNCTION
     4 ms   66.7 %       4 ms   66.7 %  work
     2 ms   33.3 %       2 ms   33.3 %  [libc.so.6]
10 more functions

    TOTAL           CALLS
  6.00 ms  100.0 %  main
     4 ms   66.7 %    work
     2 ms   33.3 %    [postgres]
                      [libc.so.6]
5 more stacks
`
	if got != want {
		t.Errorf("text:\n%s\nwant:\n%s", got, want)
	}
}

// TestTextOfFunctionsAndLines has a function that calls itself, two lines of a PL/pgSQL function, and labels as roots.
func TestTextOfFunctionsAndLines(t *testing.T) {
	b := newBuilder("cpu/nanoseconds")
	b.add("main;exec;plpgsql:f();exec;plpgsql:f();hash", []int64{3000}, "state=active")
	b.add("main;exec;plpgsql:f();sort", []int64{1000}, "state=active")
	list := b.Sample[1].Location // innermost first
	other := *list[1]
	other.ID, other.Line = uint64(len(b.Location)+1), []profile.Line{{Function: other.Line[0].Function, Line: 9}}
	b.Location = append(b.Location, &other)
	b.Sample[1].Location = []*profile.Location{list[0], &other, list[2], list[3]}
	got := b.write(t, profilefmt.Options{Format: profilefmt.Text, Root: []string{"state", "user"}})
	for _, want := range []string{
		"     3 us   75.0 %       3 us   75.0 %  hash\n",
		"        0    0.0 %       4 us  100.0 %  plpgsql:f()\n",
		"  LINE\n     3 us   75.0 %       3 us   75.0 %  plpgsql:f() line 7\n" +
			"     1 us   25.0 %       1 us   25.0 %  plpgsql:f() line 9\n\n",
		"     4 us  100.0 %  active [no user]\n" + strings.Repeat(" ", 20) + "main\n" + strings.Repeat(" ", 20) + "exec\n" +
			strings.Repeat(" ", 20) + "plpgsql:f()\n     3 us   75.0 %    exec\n" + strings.Repeat(" ", 22) + "plpgsql:f()\n",
		"     1 us   25.0 %    sort\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestTextOfWaitsForProcessors: the totals say how much of the time off the processor was a wait for one.
func TestTextOfWaitsForProcessors(t *testing.T) {
	for _, c := range []struct {
		sleeping int64
		want     string
	}{
		{2_000_000_000, "cpu 1.60 s, offcpu 10.3 s (8.30 s of it waiting for a processor)\n"},
		{900_000_000_000, "cpu 1.60 s, offcpu 15.1 min\n"}, // less than a hundredth
	} {
		b := newBuilder("cpu/nanoseconds", "offcpu/nanoseconds")
		b.add("main;work", []int64{1_600_000_000, 0})
		b.add("main;work", []int64{0, 8_300_000_000}, "off_cpu=runnable")
		b.add("main;read", []int64{0, c.sleeping}, "off_cpu=sleeping")
		if got := b.write(t, profilefmt.Options{Format: profilefmt.Text}); !strings.Contains(got, c.want) {
			t.Errorf("no %q in\n%s", c.want, got)
		}
	}
}

func TestOverflowStopsAtTheLargestNumber(t *testing.T) {
	b := newBuilder("cpu/nanoseconds")
	b.add("a", []int64{math.MaxInt64})
	b.add("a", []int64{math.MaxInt64})
	if got, want := b.write(t, profilefmt.Options{Format: profilefmt.Folded}), "a 9223372036854775807\n"; got != want {
		t.Errorf("folded %q, want %q", got, want)
	}
}

func TestErrors(t *testing.T) {
	b := odd()
	var out bytes.Buffer
	err := profilefmt.Write(&out, &b.Profile, profilefmt.Options{Format: "svg"})
	if !errors.Is(err, profilefmt.ErrFormat) {
		t.Errorf("an unknown format gives %v", err)
	}
	err = profilefmt.Write(&out, &b.Profile, profilefmt.Options{Format: profilefmt.Text, SampleType: "wall"})
	if err == nil || !strings.Contains(err.Error(), "samples, cpu") {
		t.Errorf("an unknown sample type gives %v", err)
	}
	b.Sample[0].Value = nil
	if err := profilefmt.Write(&out, &b.Profile, profilefmt.Options{Format: profilefmt.Pprof}); err == nil {
		t.Error("an invalid profile is written")
	}
	if out.Len() > 0 {
		t.Errorf("errors come with output: %q", out.String())
	}
}

// TestPprofReads lets Go's own tool read the file.
func TestPprofReads(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command in PATH")
	}
	file := filepath.Join(t.TempDir(), "odd.pb.gz")
	if err := os.WriteFile(file, []byte(odd().write(t, profilefmt.Options{Format: profilefmt.Pprof})), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := exec.Command(goTool, "tool", "pprof", "-raw", file).CombinedOutput()
	if err != nil {
		t.Fatalf("go tool pprof: %v\n%s", err, raw)
	}
	for _, want := range []string{
		"samples/count cpu/nanoseconds", "backend_type:[client backend]", "postgres+0x1234", "/bin/postgres 0123abcd",
		"inner /src/a.c:7", "middle /src/a.c:7",
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("go tool pprof -raw does not show %q:\n%s", want, raw)
		}
	}
}
