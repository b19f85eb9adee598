package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/pgcluster"
)

// TestConnectionRemedy checks that only a refused login leads to the role.
func TestConnectionRemedy(t *testing.T) {
	t.Parallel()
	refused, lost := fmt.Errorf("login: %w", &pgconn.PgError{Code: "28000"}), context.DeadlineExceeded
	for _, test := range []struct {
		cluster pgcluster.Cluster
		text    string
		err     error
		want    string
	}{
		{pgcluster.Cluster{SocketDir: "/s"}, "", refused, "role"},
		{pgcluster.Cluster{}, "host=h", refused, "role"},
		{pgcluster.Cluster{}, "host=h", lost, "Correct host and port"},
		{pgcluster.Cluster{}, "", lost, "no Unix socket. Give"},
		{pgcluster.Cluster{Root: "/proc/1/root"}, "", lost, "own network"},
		{pgcluster.Cluster{SocketDir: "/s"}, "", lost, "with a host and port"},
	} {
		if got := connectionRemedy(test.cluster, Options{ConnString: test.text}, test.err); !strings.Contains(got, test.want) {
			t.Errorf("%+v, %q, %v: %s", test.cluster, test.text, test.err, got)
		}
	}
}
