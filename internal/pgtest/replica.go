package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// StartReplica starts a hot standby of a primary, with the primary's programs. Start must have made the primary with
// the default InitDB: data directories of one template have the same system identifier and begin at the same position
// of WAL, so the standby needs no base backup. The primary must have kept all its WAL.
func StartReplica(t testing.TB, primary *Server, o Options) *Server {
	t.Helper()
	o.Stopped = true
	o.Conf = append([]string{
		fmt.Sprintf("primary_conninfo = 'host=%s port=%d user=%s'", primary.SocketDir, primary.Port, primary.User),
		"max_connections = 100", // as the template has it
	}, o.Conf...)
	s := Start(t, primary.BinDir, o)
	if err := os.WriteFile(filepath.Join(s.DataDir, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.Start()
	return s
}
