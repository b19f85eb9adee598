package cluster

import (
	"fmt"
	"time"

	"pg_stat_backtrace/ptrace/process"
)

// Cluster is a running server: the process of its postmaster, and the contents of postmaster.pid. After a restart,
// the server must be found again; see Alive.
type Cluster struct {
	// DataDir is the data directory as an absolute path without symbolic links.
	DataDir string
	// PostmasterPID and PostmasterStart (clock ticks since boot, proc(5) starttime) together identify the postmaster,
	// because the kernel reuses pids.
	PostmasterPID   int
	PostmasterStart uint64
	// ServerPID is the postmaster's id in its own PID namespace. It differs from PostmasterPID if the server is in a
	// container and this process is outside.
	ServerPID int
	// Root is the prefix for the server's paths in this process. It is "" unless the server has another root
	// directory. A server with the same root directory may have other files mounted at some paths: see Prefix.
	Root string
	// UID and GID are the effective ids of the postmaster.
	UID, GID int
	// Version is the major version: 14, 15 ...
	Version int
	// Port is the server's port. It is part of the socket's name even if the server does not use TCP.
	Port int
	// SocketDir is the first of the server's unix_socket_directories, as an absolute path for this process, or the name
	// of an abstract socket with a leading "@". It is empty if the server has none.
	SocketDir string
	// Address is the first of the server's listen_addresses on which it listens: a host name, an address, or "*". It is
	// empty if the server does not use TCP.
	Address string
	// Opening is set if the server was still opening its sockets when it was found. SocketDir and Address may be
	// missing then.
	Opening bool
	// Started is the start time of the server by the wall clock, in whole seconds.
	Started time.Time

	ids *translation // nil: the server's processes have the same ids in this process's PID namespace
}

// String names the cluster in messages.
func (c Cluster) String() string {
	return fmt.Sprintf("the server in %s (postmaster %d)", c.DataDir, c.PostmasterPID)
}

// Same reports whether c and other are the same run of the same server.
func (c Cluster) Same(other Cluster) bool {
	return c.PostmasterPID == other.PostmasterPID && c.PostmasterStart == other.PostmasterStart
}

// Alive reports whether the postmaster still runs. It reads one small file of /proc (some ten microseconds), so
// callers can call it before every capture. Once Alive has returned false, it returns false for ever: the server has
// stopped or restarted.
func (c Cluster) Alive() bool {
	if p := process.Prove(c.PostmasterPID); p != nil {
		return p.Stat.StartTime == c.PostmasterStart && !process.HasEnded(&p.Stat)
	}
	return !process.ID{PID: c.PostmasterPID, StartTime: c.PostmasterStart}.Ended()
}

// Stopping reports whether the server is shutting down. In a smart shutdown the server waits for all sessions to end,
// the worker's included. Stopping returns false if postmaster.pid cannot be read.
func (c Cluster) Stopping() bool {
	file, err := readPIDFile(c.DataDir)
	return err == nil && file.pid == c.ServerPID && file.stopping
}
