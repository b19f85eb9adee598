package doctor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/doctor"
)

// form matches each line of a report.
var form = regexp.MustCompile(`^((ok|n/a|warn|FAIL) +[a-z]+( [a-z]+)?: +\S.*| {20} -> \S.*)$`)

// text returns the report as text, split into the verdict and the findings.
func text(t *testing.T, r *doctor.Report) (verdict, findings string) {
	t.Helper()
	var out bytes.Buffer
	if err := r.Text(&out, 0); err != nil {
		t.Fatal(err)
	}
	verdict, findings, _ = strings.Cut(out.String(), "\n\n")
	return verdict, findings
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	var steps []string
	r := doctor.Examine(t.Context(), doctor.Options{
		DataDir: t.TempDir(), Version: "1.2.3", Progress: func(subject string) { steps = append(steps, subject) },
	})
	if r.Works() {
		t.Error("works without a server")
	}
	verdict, findings := text(t, r)
	if !strings.HasPrefix(verdict, "does not work; ") || verdict != r.Verdict() {
		t.Errorf("verdict %q", verdict)
	}
	order := []string{"FAIL", "warn", "n/a", "ok"}
	for line := range strings.Lines(findings) {
		if !form.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("line %q", line)
		}
		for word, _, _ := strings.Cut(line, " "); word != "" && len(order) > 0 && order[0] != word; {
			order = order[1:]
		}
	}
	if len(order) == 0 {
		t.Errorf("the worst is not first:\n%s", findings)
	}
	for _, want := range []string{
		"platform:", "yama:", "privilege:", "apparmor:", "seccomp:", "user namespace:",
		"the kernel's stack of a process in state D: ", "short pauses on a busy host: ",
		"FAIL  server:", "not a PostgreSQL data directory", "-> Name its",
	} {
		if !strings.Contains(findings, want) {
			t.Errorf("%q is not in\n%s", want, findings)
		}
	}
	if !slices.Equal(steps, []string{"this host", "the kernel's features", "the server"}) {
		t.Errorf("progress %q", steps)
	}
}

// TestJSON compares the object with the text.
func TestJSON(t *testing.T) {
	t.Parallel()
	r := doctor.Examine(t.Context(), doctor.Options{DataDir: t.TempDir()})
	var out bytes.Buffer
	if err := r.JSON(&out); err != nil {
		t.Fatal(err)
	}
	var object struct {
		Verdict                        string
		Works                          *bool
		Failures, ToMend, NotAvailable int
		Findings                       []struct{ Result, Subject, Text, Remedy string }
	}
	renamed := strings.NewReplacer("to_mend", "ToMend", "not_available", "NotAvailable").Replace(out.String())
	if err := json.Unmarshal([]byte(renamed), &object); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, f := range object.Findings {
		count[f.Result]++
		if f.Subject == "" || f.Text == "" || f.Result == "ok" && f.Remedy != "" {
			t.Errorf("%+v", f)
		}
	}
	if object.Works == nil || *object.Works || object.Verdict != r.Verdict() || count["fail"] != object.Failures ||
		count["warn"] != object.ToMend || count["n/a"] != object.NotAvailable || object.Failures == 0 {
		t.Errorf("%+v, counted %v", object, count)
	}
}

type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestUnwritable(t *testing.T) {
	t.Parallel()
	r := doctor.Examine(t.Context(), doctor.Options{DataDir: t.TempDir()})
	for _, write := range []func(io.Writer) error{func(w io.Writer) error { return r.Text(w, 80) }, r.JSON} {
		if err := write(full{}); !errors.Is(err, errFull) {
			t.Errorf("error %v", err)
		}
	}
}

// TestHostileNames: a name adds no line, and no characters that drive a terminal are printed.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a\x1b[31m\u202e\x7f\nok    server:        all is well")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, report := text(t, doctor.Examine(t.Context(), doctor.Options{DataDir: dir}))
	if strings.Contains(report, "\nok    server:") || strings.ContainsAny(report, "\x1b\u202e\x7f") {
		t.Errorf("%q", report)
	}
}
