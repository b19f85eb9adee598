package places

import (
	"os/exec"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestServerInHiddenNamespace checks a worker in a PID namespace in which the server's processes do not exist. It
// cannot serve the server, and its error says what to do.
func TestServerInHiddenNamespace(t *testing.T) {
	needRoot(t, "unshare")
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	for _, where := range [][]string{{"-D", s.DataDir}, {s.DSN(s.User, "postgres")}} {
		arguments := append([]string{"--pid", "--fork", "--mount-proc", program, "worker"}, where...)
		out, err := exec.Command("unshare", arguments...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "shareProcessNamespace") {
			t.Errorf("%v: %v: %s", where, err, out)
		}
	}
}
