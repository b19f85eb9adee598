package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/worker/pg/cluster"
)

// TestConnectionRemedy checks that only a refused login leads to the role.
func TestConnectionRemedy(t *testing.T) {
	t.Parallel()
	refused, lost := fmt.Errorf("login: %w", &pgconn.PgError{Code: "28000"}), context.DeadlineExceeded
	for _, test := range []struct {
		cluster cluster.Cluster
		text    string
		err     error
		want    string
	}{
		{cluster.Cluster{SocketDir: "/s"}, "", refused, "role"},
		{cluster.Cluster{}, "host=h", refused, "role"},
		{cluster.Cluster{}, "host=h", lost, "Correct host and port"},
		{cluster.Cluster{}, "", lost, "no Unix socket. Give"},
		{cluster.Cluster{Root: "/proc/1/root"}, "", lost, "own network"},
		{cluster.Cluster{SocketDir: "/s"}, "", lost, "with a host and port"},
	} {
		if got := connectionRemedy(test.cluster, Options{ConnString: test.text}, test.err); !strings.Contains(got, test.want) {
			t.Errorf("%+v, %q, %v: %s", test.cluster, test.text, test.err, got)
		}
	}
}
