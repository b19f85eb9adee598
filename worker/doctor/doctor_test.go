package doctor_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/doctor"
)

// form is what each line of a report looks like.
var form = regexp.MustCompile(`^((ok|warn|FAIL) +[a-z]+( [a-z]+)?: +\S.*| {20} -> \S.*)$`)

func TestNoServer(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	failed, err := doctor.Run(context.Background(), &out, doctor.Options{DataDir: t.TempDir(), Version: "1.2.3"})
	if err != nil || failed == 0 {
		t.Errorf("%d failures, %v", failed, err)
	}
	report := out.String()
	for line := range strings.Lines(report) {
		if !form.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("line %q", line)
		}
	}
	for _, want := range []string{
		"platform:", "yama:", "privilege:", "apparmor:", "seccomp:", "user namespace:",
		"the kernel's stack of a process in state D: CAP_SYS_ADMIN",
		"FAIL  server:", "not a PostgreSQL data directory", "-> Name its",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("%q is not in\n%s", want, report)
		}
	}
}

type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestUnwritable(t *testing.T) {
	t.Parallel()
	if _, err := doctor.Run(context.Background(), full{}, doctor.Options{DataDir: t.TempDir()}); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
}

// TestHostileNames: a name adds no line, and no characters that drive a terminal are printed.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a\x1b[31m\u202e\x7f\nok    server:        all is well")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := doctor.Run(t.Context(), &out, doctor.Options{DataDir: dir}); err != nil {
		t.Fatal(err)
	}
	report := out.String()
	if strings.Contains(report, "\nok    server:") || strings.ContainsAny(report, "\x1b\u202e\x7f") {
		t.Errorf("%q", report)
	}
}
