package cluster

import (
	"errors"
	"fmt"
)

// Errors for callers to branch on. They are wrapped with the directory, process or connection.
var (
	// ErrNotDataDir means that the directory is not a PostgreSQL data directory, or cannot be read.
	ErrNotDataDir = errors.New("not a PostgreSQL data directory")
	// ErrNotRunning means that no postmaster runs on the data directory. A postmaster.pid may be left over.
	ErrNotRunning = errors.New("no server is running")
	// ErrNotPostmaster means that the process at the other end of the socket is not a postmaster, but perhaps a
	// pooler or proxy.
	ErrNotPostmaster = errors.New("not a PostgreSQL postmaster")
	// ErrNamespace means that the server is in another PID or mount namespace, where its process ids and paths have
	// another meaning.
	ErrNamespace = errors.New("the server is in another namespace")
	// ErrWrongUser means that this process is neither the server's operating system user nor root.
	ErrWrongUser = errors.New("not the server's operating system user")
	// ErrNoAccess means that this process runs as the right user, but the kernel denies access to the postmaster. See
	// proc(5) and "Ptrace access mode checking" in ptrace(2).
	ErrNoAccess = errors.New("the kernel denies this process access to the postmaster")
	// ErrWrongCluster means that a connection leads to another server than the served one. See WrongClusterError.
	ErrWrongCluster = errors.New("the connection leads to another server")
	// ErrPooler means that a connection leads to a connection pooler. See PoolerError.
	ErrPooler = errors.New("the connection leads to a connection pooler")
	// ErrNotMember means that the process does not belong to this server, or does not exist.
	ErrNotMember = errors.New("not a process of this server")
	// ErrPostmaster means that the process is the postmaster itself.
	ErrPostmaster = errors.New("the process is the postmaster")
	// ErrNoServer means that there is no connection to the server now.
	ErrNoServer = errors.New("not connected to the server")
	// ErrNotStatic means that a binary linked with cgo cannot change the credentials of all its threads.
	ErrNotStatic = errors.New("changing the user needs a binary built with CGO_ENABLED=0")
)

// missingDirError is the error for a directory that does not exist. errors.Is(err, ErrNotDataDir) holds.
type missingDirError struct{ dir string }

func (e *missingDirError) Error() string {
	return fmt.Sprintf("the directory %s does not exist", e.dir)
}

// Is makes the error match ErrNotDataDir.
func (e *missingDirError) Is(target error) bool { return target == ErrNotDataDir }

// SingleUserError has the process of a server that runs in single-user mode, without a postmaster (postgres --single).
type SingleUserError struct{ PID int }

// Error names the process.
func (e *SingleUserError) Error() string {
	return fmt.Sprintf("process %d runs in single-user mode", e.PID)
}

// WrongClusterError has the server to which a connection leads, and the one to which it should lead. errors.Is(err,
// ErrWrongCluster) holds.
type WrongClusterError struct {
	Want Cluster // the server to be served
	Got  string  // a description of the other server
}

// Error names both servers.
func (e *WrongClusterError) Error() string {
	return fmt.Sprintf("the connection leads to %s, not to %s", e.Got, e.Want)
}

// Is makes the error match ErrWrongCluster.
func (e *WrongClusterError) Is(target error) bool { return target == ErrWrongCluster }
