package pgcluster

import (
	"fmt"
	"time"

	"pg_stat_backtrace/ptrace/procfs"
)

// Cluster is a running server: its postmaster as one incarnation of a process, and what the postmaster told about
// itself in postmaster.pid. After a restart of the server it has to be found again; see Alive.
type Cluster struct {
	// DataDir is the data directory as an absolute path without symbolic links.
	DataDir string
	// PostmasterPID and PostmasterStart (clock ticks since boot, proc(5) starttime) together name the postmaster: the
	// pid alone may be given to another process one day.
	PostmasterPID   int
	PostmasterStart uint64
	// ServerPID is the postmaster's id in its own PID namespace: PostmasterPID, unless the server is in a container and
	// this process outside.
	ServerPID int
	// Root stands before a path of the server's in this process's view: "" unless the server has another root directory.
	Root string
	// UID and GID are the effective ids of the postmaster.
	UID, GID int
	// Version is the major version: 14, 15 ...
	Version int
	// Port is the port the server listens on; it is part of the socket's name also when the server has no TCP.
	Port int
	// SocketDir is the first of the server's unix_socket_directories, absolute, as this process reaches it; empty when
	// it has none.
	SocketDir string
	// Started is when the server was started, by the wall clock of that moment, in whole seconds.
	Started time.Time

	ids *translation // nil: the server's process ids are the same here
}

// String names the cluster in messages.
func (c Cluster) String() string {
	return fmt.Sprintf("the server in %s (postmaster %d)", c.DataDir, c.PostmasterPID)
}

// Same reports whether both are the same run of the same server.
func (c Cluster) Same(other Cluster) bool {
	return c.PostmasterPID == other.PostmasterPID && c.PostmasterStart == other.PostmasterStart
}

// Alive reports whether the postmaster still runs. It reads one small file of /proc (some ten microseconds), so it can
// be asked before every capture. Once false it stays false: the server was stopped, or restarted under another id.
func (c Cluster) Alive() bool {
	stat, err := procfs.ReadStat(c.PostmasterPID)
	return err == nil && stat.StartTime == c.PostmasterStart && !exited(stat.State)
}

// Stopping reports whether the server has been told to stop. In a smart shutdown it then waits for all sessions to end,
// a worker's too.
func (c Cluster) Stopping() bool {
	file, err := readPIDFile(c.DataDir)
	return err == nil && file.pid == c.ServerPID && file.stopping
}

// exited reports whether a process in this state of proc(5) has ended and merely waits to be reaped.
func exited(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }
