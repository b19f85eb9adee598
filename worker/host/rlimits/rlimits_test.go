package rlimits_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/host/rlimits"
)

// TestMain runs Check in a separate process when the environment names a limit.
func TestMain(m *testing.M) {
	if os.Getenv("RLIMITS_TEST_CHECK") == "" {
		os.Exit(m.Run())
	}
	_, _ = fmt.Fprintln(os.Stdout, rlimits.Check())
}

// under runs Check with limits that the shell sets.
func under(t *testing.T, limits string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", limits+` exec "$0"`, self)
	cmd.Env = append(os.Environ(), "RLIMITS_TEST_CHECK=1")
	out, _ := cmd.CombinedOutput() // the status is no matter
	return string(out)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, limits, want string }{
		{"enough", "ulimit -n 256;", "<nil>\n"},
		{"few descriptors", "ulimit -n 12;", "RLIMIT_NOFILE allows 12), and 24 are needed"},
		{"descriptors of the parent", "ulimit -n 30; exec 5>&1 6>&1 7>&1 8>&1 9>&1;", "RLIMIT_NOFILE allows 30)"},
		{"little address space", "ulimit -v 950000;", "RLIMIT_AS"},
		{"little data", "ulimit -d 200000;", "RLIMIT_DATA"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(tt.name, "little") && raceDetector {
				t.Skip("the race detector needs more memory than this test allows")
			}
			if got := under(t, tt.limits); !strings.Contains(got, tt.want) || strings.Contains(got, "goroutine") {
				t.Errorf("%s got %s; want %s", tt.limits, got, tt.want)
			}
		})
	}
}
