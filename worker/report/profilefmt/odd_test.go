package profilefmt_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/profilefmt"
)

// speedscopeFile has the parts of the published schema that a sampled profile needs.
type speedscopeFile struct {
	Schema string `json:"$schema"`
	Active *int   `json:"activeProfileIndex"`
	Shared struct {
		Frames []struct {
			Name *string `json:"name"`
		} `json:"frames"`
	} `json:"shared"`
	Profiles []struct {
		Type    string    `json:"type"`
		Name    string    `json:"name"`
		Unit    string    `json:"unit"`
		Start   *float64  `json:"startValue"`
		End     *float64  `json:"endValue"`
		Samples [][]int   `json:"samples"`
		Weights []float64 `json:"weights"`
	} `json:"profiles"`
}

// checkSpeedscope verifies a speedscope file against the rules of its schema and of its importer.
func checkSpeedscope(t *testing.T, text string) *speedscopeFile {
	t.Helper()
	var file speedscopeFile
	decoder := json.NewDecoder(strings.NewReader(text))
	if err := decoder.Decode(&file); err != nil {
		t.Fatalf("speedscope: %v", err)
	}
	if file.Schema != "https://www.speedscope.app/file-format-schema.json" {
		t.Errorf("schema %q", file.Schema)
	}
	if file.Active == nil || *file.Active < 0 || *file.Active >= len(file.Profiles) {
		t.Errorf("active profile %v of %d", file.Active, len(file.Profiles))
	}
	for _, f := range file.Shared.Frames {
		if f.Name == nil {
			t.Error("a frame without a name")
		}
	}
	units := []string{"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}
	for _, p := range file.Profiles {
		if p.Type != "sampled" || p.Start == nil || p.End == nil || !slices.Contains(units, p.Unit) {
			t.Errorf("profile %q of type %q, unit %q", p.Name, p.Type, p.Unit)
		}
		if len(p.Samples) != len(p.Weights) {
			t.Errorf("profile %q has %d samples and %d weights", p.Name, len(p.Samples), len(p.Weights))
		}
		for i, stack := range p.Samples {
			if p.Weights[i] <= 0 {
				t.Errorf("profile %q has a weight of %v", p.Name, p.Weights[i])
			}
			for _, frame := range stack {
				if frame < 0 || frame >= len(file.Shared.Frames) {
					t.Errorf("profile %q has a frame %d of %d", p.Name, frame, len(file.Shared.Frames))
				}
			}
		}
	}
	return &file
}

func TestSpeedscope(t *testing.T) {
	b := odd()
	file := checkSpeedscope(t, b.write(t, profilefmt.Options{
		Format: profilefmt.Speedscope, Title: "odd", SampleType: "samples", Root: []string{"database"},
	}))
	if len(file.Profiles) != 2 || *file.Active != 0 || file.Profiles[1].Unit != "nanoseconds" {
		t.Fatalf("profiles: %+v", file.Profiles)
	}
	if got, want := file.Profiles[0].Name, "samples (1 negative values left out)"; got != want {
		t.Errorf("name %q, want %q", got, want)
	}
	stacks := make([]string, 0, len(file.Profiles[0].Samples))
	for _, stack := range file.Profiles[0].Samples {
		names := make([]string, len(stack))
		for i, frame := range stack {
			names[i] = *file.Shared.Frames[frame].Name
		}
		stacks = append(stacks, strings.Join(names, ";"))
	}
	slices.Sort(stacks)
	want := []string{
		"[no database]", `[no database];a b;c;x\x1b[2J\u202e`, "[no database];main;[postgres: static, in lock.c]",
		"[no database];main;[postgres];[libc.so.6]", "[no database];main;outer;middle;inner",
		"app;main;work", "other;main;work",
	}
	if !slices.Equal(stacks, want) {
		t.Errorf("stacks:\n%s\nwant:\n%s", strings.Join(stacks, "\n"), strings.Join(want, "\n"))
	}
	if *file.Profiles[0].End != 10 {
		t.Errorf("samples end at %v", *file.Profiles[0].End)
	}
}

// TestOddProfiles: each format prints each odd profile, and the text formats print one line for each stack.
func TestOddProfiles(t *testing.T) {
	deep := newBuilder("samples/count")
	deep.add(strings.Repeat("f;", 100_000)+"leaf", []int64{1})
	lines := newBuilder("samples/count") // one location with many inlined calls
	lines.add(strings.Repeat("f<", 5000)+"outer", []int64{1})
	negative := newBuilder("cpu/nanoseconds")
	negative.add("a", []int64{math.MinInt64})
	negative.add("b", []int64{math.MaxInt64})
	noFunction := newBuilder("samples/count")
	noFunction.add("/bin/x!", []int64{1})
	noFunction.Function = []*profile.Function{{ID: 1}} // without a name
	noFunction.Location[0].Line = []profile.Line{{Function: noFunction.Function[0]}}
	zero := newBuilder("samples/count")
	zero.add("a", []int64{0})
	anonymous := newBuilder("/")
	anonymous.add("\n;\t; ;;", []int64{7}, "=", "\n=\n")
	numbers := newBuilder("samples/count")
	numbers.add("a", []int64{1})
	numbers.Sample[0].NumLabel = map[string][]int64{"bytes": {4096, 1}}
	numbers.Sample[0].NumUnit = map[string][]string{"bytes": {"bytes", ""}}
	for name, b := range map[string]*builder{
		"odd": odd(), "empty": newBuilder("samples/count"), "zero": zero, "deep": deep, "inlined": lines,
		"negative": negative, "no function": noFunction, "anonymous": anonymous, "numbers": numbers,
	} {
		t.Run(name, func(t *testing.T) {
			for _, format := range profilefmt.Formats() {
				out := b.write(t, profilefmt.Options{Format: format, Root: []string{"bytes", "none"}})
				switch format {
				case profilefmt.Folded:
					for line := range strings.Lines(out) {
						if strings.Count(strings.TrimSuffix(line, "\n"), " ") != 1 {
							t.Errorf("folded line %.200q", line)
						}
					}
				case profilefmt.Speedscope:
					checkSpeedscope(t, out)
				case profilefmt.JSON:
					checkJSON(t, &b.Profile, out)
				case profilefmt.Pprof:
					if _, err := profilefmt.Read(strings.NewReader(out), nil); err != nil {
						t.Errorf("cannot read pprof: %v", err)
					}
				}
			}
		})
	}
	unlabelled := newBuilder("samples/count")
	unlabelled.add("", []int64{3})
	if got := unlabelled.write(t, profilefmt.Options{Format: profilefmt.Folded}); got != "[no_stack] 3\n" {
		t.Errorf("a sample without a stack: %q", got)
	}
	folded := deep.write(t, profilefmt.Options{Format: profilefmt.Folded})
	separators := strings.Count(folded, ";")
	if !strings.HasPrefix(folded, "...;f;") || separators != 4096 || !strings.HasSuffix(folded, ";leaf 1\n") {
		t.Errorf("a deep stack has %d frames: %.20q", separators+1, folded)
	}
	got := numbers.write(t, profilefmt.Options{Format: profilefmt.Folded, Root: []string{"bytes"}})
	if got != "4096_bytes,1;a 1\n" {
		t.Errorf("numeric labels: %q", got)
	}
}

// TestManyLabelValues: a label with too many values is left out of a page, and the page reports it.
func TestManyLabelValues(t *testing.T) {
	b := newBuilder("samples/count")
	for i := range 10_001 {
		b.add("a", []int64{1})
		b.Sample[i].NumLabel = map[string][]int64{"time": {int64(i)}}
	}
	if page := b.write(t, profilefmt.Options{Format: profilefmt.HTML}); !strings.Contains(page,
		`"label time has more than 10000 values and is left out"`) {
		t.Error("the page does not say that a label is missing")
	}
}

// TestTooLarge: a small file is refused if the sum of its stacks is enormous.
func TestTooLarge(t *testing.T) {
	b := newBuilder("samples/count")
	b.add(strings.Repeat("f<", 4095)+"outer", []int64{1})
	for range 130_000 {
		b.Sample = append(b.Sample, b.Sample[0])
	}
	for _, format := range []string{profilefmt.Text, profilefmt.JSON, profilefmt.Folded, profilefmt.Speedscope, profilefmt.HTML} {
		var out bytes.Buffer
		err := profilefmt.Write(&out, &b.Profile, profilefmt.Options{Format: format})
		if err == nil || !strings.Contains(err.Error(), "too many different stacks") {
			t.Errorf("%s: %v", format, err)
		}
	}
	b = newBuilder("a", "b", "c", "d", "e")
	b.add(strings.Repeat("f<", 4095)+"outer", []int64{1, 1, 1, 1, 1})
	for range 30_000 {
		b.Sample = append(b.Sample, b.Sample[0])
	}
	err := profilefmt.Write(io.Discard, &b.Profile, profilefmt.Options{Format: profilefmt.Speedscope})
	if err == nil || !strings.Contains(err.Error(), "too many different stacks") {
		t.Errorf("a stack for each of five sample types: %v", err)
	}
}

// TestSpeedscopeMemory: a stack in many samples of many types is written many times, and kept once.
func TestSpeedscopeMemory(t *testing.T) {
	const types, samples, depth = 50, 100, 4096
	b := newBuilder(slices.Repeat([]string{"x/count"}, types)...)
	for i := range samples {
		b.add(strings.Repeat("f<", depth-1)+"outer", slices.Repeat([]int64{1}, types), "n="+strconv.Itoa(i))
	}
	used := allocated(func() {
		o := profilefmt.Options{Format: profilefmt.Speedscope, Root: []string{"n"}}
		if err := profilefmt.Write(io.Discard, &b.Profile, o); err != nil {
			t.Error(err)
		}
	})
	if used > types*samples*depth {
		t.Errorf("%d frames need %d bytes", types*samples*depth, used)
	}
}

// TestNamesAreCut: a long name is cut between two characters, and has a mark.
func TestNamesAreCut(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("x", 4096):       strings.Repeat("x", 4096),
		strings.Repeat("x", 4097):       strings.Repeat("x", 4093) + "...",
		strings.Repeat("é", 3000):       strings.Repeat("é", 2046) + "...",
		strings.Repeat("\x9f", 5000):    strings.Repeat(`\x9f`, 4090) + "...",
		"x" + strings.Repeat("中", 2000): "x" + strings.Repeat("中", 1364) + "...",
	} {
		b := newBuilder("samples/count")
		b.add(name, []int64{1}, "label="+name)
		got := b.write(t, profilefmt.Options{Format: profilefmt.Folded, Root: []string{"label"}})
		if got != want+";"+want+" 1\n" {
			t.Errorf("a name of %d bytes, %.10q, becomes %.20q, %d bytes", len(name), name, got, len(got))
		}
	}
}

// TestOneNameOfManyFunctions: functions with one long name do not have a copy each.
func TestOneNameOfManyFunctions(t *testing.T) {
	b := newBuilder("samples/count")
	name := strings.Repeat("\x01", 1<<18)
	for i := range 200 {
		b.add(strconv.Itoa(i), []int64{1}, "label=x")
		b.Function[i].Name, b.Function[i].Filename = name, strconv.Itoa(i)
		b.Sample[i].Label["label"] = slices.Repeat([]string{name}, i%2+1)
	}
	for _, format := range []string{profilefmt.Text, profilefmt.JSON, profilefmt.Folded, profilefmt.Speedscope, profilefmt.HTML} {
		used := allocated(func() {
			o := profilefmt.Options{Format: format, Root: []string{"label"}}
			if err := profilefmt.Write(io.Discard, &b.Profile, o); err != nil {
				t.Errorf("%s: %v", format, err)
			}
		})
		if used > 100<<20 {
			t.Errorf("%s needs %d bytes", format, used)
		}
	}
}

// TestNamesTooLong: a profile is refused if the sum of its names and labels is enormous.
func TestNamesTooLong(t *testing.T) {
	if os.Getenv("PGSB_TEST_FULL") == "" {
		t.Skip("without PGSB_TEST_FULL=1: 256 MB of names need ten seconds and 1 GB of memory")
	}
	escapes := strings.Repeat("\x01", 4000)
	functions, labels := newBuilder("samples/count"), newBuilder("samples/count")
	for i := range 18_000 { // 288 MB with the escapes
		functions.add(strconv.Itoa(i)+escapes, []int64{1})
		labels.add("main", []int64{1}, []string{"a", "b"}[i%2]+"="+strconv.Itoa(i)+escapes)
	}
	for _, c := range []struct {
		format string
		b      *builder
	}{
		{profilefmt.Folded, functions}, {profilefmt.Speedscope, functions}, {profilefmt.HTML, functions},
		{profilefmt.HTML, labels}, {profilefmt.Speedscope, labels},
	} {
		o := profilefmt.Options{Format: c.format, Root: []string{"a", "b"}}
		err := profilefmt.Write(io.Discard, &c.b.Profile, o)
		if err == nil || !strings.Contains(err.Error(), "names in the profile are too long") {
			t.Errorf("%s, %d functions: %v", c.format, len(c.b.Function), err)
		}
	}
}
