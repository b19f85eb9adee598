package measurecmd

import (
	"io"
	"os/exec"
	"testing"

	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
)

// TestLogOfServerThatEndedAgain: a server that has restarted ends before its sessions can be read. The former log stays.
func TestLogOfServerThatEndedAgain(t *testing.T) {
	t.Parallel()
	postmaster := exec.CommandContext(t.Context(), "true")
	if err := postmaster.Run(); err != nil {
		t.Fatal(err)
	}
	f := waitsFilter{users: []string{"alice"}, log: state.NewSessionLog(nil, 0)}
	server := &waitevent.Server{Cluster: cluster.Cluster{PostmasterPID: postmaster.Process.Pid}}
	if f.renewLog(server) {
		t.Error("the sessions of an ended server can be read")
	}
	if err := f.unseen(io.Discard); err == nil {
		t.Error("a session of alice was seen")
	}
}
