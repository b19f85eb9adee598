package pgcluster

import (
	"errors"
	"fmt"
)

// Errors that callers branch on; they come wrapped with the directory, process or connection they are about.
var (
	// ErrNotDataDir: the directory is no PostgreSQL data directory, or cannot be read.
	ErrNotDataDir = errors.New("not a PostgreSQL data directory")
	// ErrNotRunning: no postmaster runs on the data directory. A postmaster.pid may be left over.
	ErrNotRunning = errors.New("no server is running")
	// ErrNotPostmaster: the process at the other end of the socket is no postmaster: a pooler or a proxy, perhaps.
	ErrNotPostmaster = errors.New("not a PostgreSQL postmaster")
	// ErrNamespace: the server lives in another PID or mount namespace, where its process ids and paths mean
	// something else.
	ErrNamespace = errors.New("the server is in another namespace")
	// ErrWrongUser: this process is neither the server's operating system user nor root.
	ErrWrongUser = errors.New("not the server's operating system user")
	// ErrNoAccess: the user is the right one, but the kernel keeps the postmaster from this process, see proc(5) and
	// "Ptrace access mode checking" in ptrace(2).
	ErrNoAccess = errors.New("the kernel does not let this process look at the postmaster")
	// ErrWrongCluster: a connection leads to another server than the one to be served. See WrongClusterError.
	ErrWrongCluster = errors.New("the connection leads to another server")
	// ErrPooler: a connection leads to a connection pooler. See PoolerError.
	ErrPooler = errors.New("the connection leads to a connection pooler")
	// ErrNotMember: the process is none of this server's, or does not exist.
	ErrNotMember = errors.New("not a process of this server")
	// ErrPostmaster: the process is the postmaster itself.
	ErrPostmaster = errors.New("the process is the postmaster")
	// ErrNoServer: there is no connection to the server at the moment.
	ErrNoServer = errors.New("not connected to the server")
	// ErrNotStatic: a binary linked with cgo cannot change the credentials of all its threads.
	ErrNotStatic = errors.New("changing the user needs a binary built with CGO_ENABLED=0")
)

// WrongClusterError says where a connection leads and where it should lead. errors.Is(err, ErrWrongCluster) holds.
type WrongClusterError struct {
	Want Cluster // the server to be served
	Got  string  // what is known of the other one
}

// Error names both servers.
func (e *WrongClusterError) Error() string {
	return fmt.Sprintf("the connection leads to %s, not to %s", e.Got, e.Want)
}

// Is makes the error match ErrWrongCluster.
func (e *WrongClusterError) Is(target error) bool { return target == ErrWrongCluster }
