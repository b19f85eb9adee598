package state

import (
	"slices"
	"time"

	"pg_stat_backtrace/worker/pg/cluster"
)

// State is the state of a session, as in pg_stat_activity.
type State int

// The states. Other stands for a session that is starting, and for a server with track_activities off.
const (
	Other State = iota
	Idle
	Active
	IdleInTransaction
	Aborted
)

// Process is the state of a process.
type Process struct {
	// PID is the process id in this process's PID namespace.
	PID int
	// BackendType is as in pg_stat_activity, except that background workers other than parallel workers are all
	// "background worker".
	BackendType string
	// State is the state of a client backend; of other processes it is Other.
	State State
	// WaitType and WaitEvent are as in pg_stat_activity, and empty while the process does not wait.
	WaitType, WaitEvent string
	// Transaction is when the open transaction of the process began, LockWait when it began to wait for a heavyweight
	// lock; nil: it has none, or the time is not known.
	Transaction, LockWait *time.Time
}

// Active reports whether a process works or waits for something that it needs for its work.
func (p *Process) Active() bool {
	if p.BackendType == ClientBackend {
		return p.State == Active
	}
	return p.WaitType != "Activity" // the events in which idle background processes wait
}

// ActivityReader reads the processes of one run of a server. It must not be used by several goroutines at a time.
type ActivityReader struct{ state *Reader }

// OpenActivity returns a reader for a running server. The error wraps waits.ErrUnsupported if its version is not known.
func OpenActivity(c cluster.Cluster) (*ActivityReader, error) {
	r, err := Open(c)
	if err != nil {
		return nil, err
	}
	return &ActivityReader{r}, nil
}

// Cluster returns the run of the server that the reader is for.
func (r *ActivityReader) Cluster() cluster.Cluster { return r.state.Cluster() }

// Read returns the processes that have an entry in pg_stat_activity. The error wraps waits.ErrServerGone if the server
// has ended.
func (r *ActivityReader) Read() ([]Process, error) {
	m, err := r.state.Read(Options{})
	if err != nil {
		return nil, err
	}
	processes := make([]Process, 0, len(m.Sessions))
	for i := range m.Sessions {
		s := &m.Sessions[i]
		p := Process{PID: s.PID, BackendType: s.Type, Transaction: s.XactStart}
		switch {
		case s.Type == ClientBackend:
			p.State = stateOf(s.State)
		case s.Type != ParallelWorker && !slices.Contains(BackendTypes(m.Version), s.Type):
			p.BackendType = BackgroundWorker
		}
		if s.Wait != nil {
			p.WaitType, p.WaitEvent, p.LockWait = s.Wait.Type, s.Wait.Event, s.Wait.Since
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// Positions is Reader.WAL.
func (r *ActivityReader) Positions() (Positions, error) { return r.state.WAL() }

// MaxConnections returns the server's parameter max_connections; 0: it is not known.
func (r *ActivityReader) MaxConnections() int { return r.state.MaxConnections() }

// OrdinarySlots is Reader.OrdinarySlots.
func (r *ActivityReader) OrdinarySlots() int { return r.state.OrdinarySlots() }

// stateOf returns the State for its name in pg_stat_activity; Other for other names.
func stateOf(name string) State {
	switch name {
	case "idle":
		return Idle
	case "active", "fastpath function call":
		return Active
	case "idle in transaction":
		return IdleInTransaction
	case "idle in transaction (aborted)":
		return Aborted
	}
	return Other
}
