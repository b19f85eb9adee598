package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
)

// TestReport turns the folded stacks of a real process into every format, and these back into folded stacks.
func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	status, folded, stderr := run(t, "capture", "--nonstop", "--format", "folded", "--repeat", "3", sleeper(t))
	if status != 0 {
		t.Fatalf("capture: status %d, %s", status, stderr)
	}
	input := filepath.Join(dir, "sleep.folded")
	if err := os.WriteFile(input, []byte(folded), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"page.html": "<title>sleep.folded</title>", "sleep.json": `"type":"sampled"`, "again.folded": folded,
		"sleep.txt": "sleep.folded\n3 samples\n",
	} {
		output := filepath.Join(dir, name)
		if status, stdout, stderr := run(t, "report", input, "-o", output); status != 0 || stdout+stderr != "" {
			t.Errorf("%s: status %d, %q, %q", name, status, stdout, stderr)
		}
		if got := fileText(t, output); !strings.Contains(got, want) {
			t.Errorf("%s is %.300q and lacks %q", name, got, want)
		}
	}
	pprof := filepath.Join(dir, "sleep.pb.gz")
	if status, _, stderr := run(t, "report", input, "-o", pprof); status != 0 {
		t.Fatalf("pprof: status %d, %s", status, stderr)
	}
	if status, got, stderr := run(t, "report", "-f", "folded", pprof); status != 0 || got != folded {
		t.Errorf("from pprof: status %d, %q, %q, want %q", status, stderr, got, folded)
	}
	// Two files are added up.
	status, got, stderr := run(t, "report", pprof, input, "--top", "1", "--title", "twice")
	if status != 0 || !strings.HasPrefix(got, "twice\n6 samples\n") {
		t.Errorf("two files: status %d, %q, %q", status, stderr, got)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files stay: %v, %v", left, err)
	}
}

func fileText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReportReadsGo reads a profile that Go's own runtime wrote.
func TestReportReadsGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "heap.pb.gz")
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestReportErrors$",
		"-test.memprofilerate=1", "-test.memprofile="+file)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	status, text, stderr := run(t, "report", file, "--sample-type", "alloc_space")
	if status != 0 || !strings.Contains(text, "alloc_objects") || !regexp.MustCompile(`alloc_space \d+ [kMG]B`).MatchString(text) {
		t.Errorf("status %d, %q, %.500q", status, stderr, text)
	}
}

func TestReportErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folded, rubbish := filepath.Join(dir, "a.folded"), filepath.Join(dir, "rubbish")
	for name, text := range map[string]string{folded: "a;b 1\n", rubbish: "rubbish\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := filepath.Join(dir, "old.html")
	if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"report"}, 2, "wrong number of arguments, 0"},
		{[]string{"report", folded, "-f", "svg"}, 2, "--format must be one of text, json, folded, pprof, speedscope, html"},
		{[]string{"report", folded, "--top", "0"}, 2, "--top must be at least 1"},
		{[]string{"report", folded, "-f", "html", "--top", "3"}, 2, "--top has no effect with format html"},
		{[]string{"report", folded, "-f", "pprof", "--group-by", "x"}, 2, "--group-by has no effect with format pprof"},
		{[]string{"report", folded, "-f", "folded", "--title", "x"}, 2, "--title has no effect with format folded"},
		{[]string{"report", folded, "-f", "pprof", "--sample-type", "cpu"}, 1, `no sample type "cpu"`},
		{[]string{"report", folded, "-f", "html", "--group-by", "x"}, 1, `no label "x": its samples have no labels`},
		{[]string{"report", folded, "-f", "folded", "--group-by", "x"}, 1, `no label "x"`},
		{[]string{"report", folded, "-"}, 2, "standard input cannot be combined with files"},
		{[]string{"report", filepath.Join(dir, "missing")}, 1, "no such file"},
		{[]string{"report", rubbish}, 1, "neither folded stacks (line 1 has no count) nor a pprof file ("},
		{[]string{"report", folded, "--sample-type", "cpu"}, 1, `no sample type "cpu": want one of samples`},
		{[]string{"report", folded, "--sample-type", "cpu", "-o", old}, 1, `no sample type "cpu"`},
		{[]string{"report", folded, "-o", filepath.Join(dir, "missing", "a.html")}, 1, "no such file"},
		{[]string{"report", folded, "-o", "/dev/full", "-f", "html"}, 1, "no space left on device"},
	} {
		status, stdout, stderr := run(t, c.args...)
		if status != c.status || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: status %d, %q, %q, want %q", strconv.Itoa(i), status, stdout, stderr, c.want)
		}
	}
	if got := fileText(t, old); got != "old" {
		t.Errorf("an error replaced the old file by %q", got)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 3 {
		t.Errorf("errors leave %d files: %v", len(files), err)
	}
}

// TestReportSampleType: the type that is asked for is the default of the pprof file.
func TestReportSampleType(t *testing.T) {
	t.Parallel()
	p := &pprof.Profile{
		SampleType: []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Sample: []*pprof.Sample{
			{Value: []int64{1, 2}, Label: map[string][]string{"user": {"ann"}, "database": {"app"}}},
		},
	}
	file, out := filepath.Join(t.TempDir(), "in.pb.gz"), filepath.Join(t.TempDir(), "out.pb.gz")
	var data bytes.Buffer
	if err := errors.Join(p.Write(&data), os.WriteFile(file, data.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := run(t, "report", file, "-o", out, "--sample-type", "samples"); status != 0 {
		t.Fatalf("status %d, %q", status, stderr)
	}
	written, err := pprof.ParseData([]byte(fileText(t, out)))
	if err != nil || written.DefaultSampleType != "samples" {
		t.Errorf("%v, %v", written, err)
	}
	status, _, stderr := run(t, "report", file, "-f", "html", "--group-by", "databse")
	if status != 1 || !strings.Contains(stderr, `no label "databse": want one of database, user`) {
		t.Errorf("status %d, %q", status, stderr)
	}
	status, page, stderr := run(t, "report", file, "-f", "html", "--group-by", "database")
	if status != 0 || !strings.Contains(page, `"root":["database"]`) {
		t.Errorf("status %d, %q", status, stderr)
	}
}
