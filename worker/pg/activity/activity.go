// Package activity reads what each process of a server does now: its type, its state and its wait event. It reads them
// from the server's memory, without a query and without stopping a process, so it also works while the server accepts
// no connections. It has the names of PostgreSQL's types and states of processes.
//
// This package reads the entries of all processes now and then, and repeats a read if the process changes its entry
// meanwhile. Package clusterprofile does not use this reader: it needs the entry of one process at the moment of a
// sample, and only a program in the kernel can read it then. Both take the names from here.
//
// The package must not know what the figures are for.
package activity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
)

// State is the state of a session, as in pg_stat_activity.
type State int

// The states. Other stands for a session that starts, and for a server with track_activities off.
const (
	Other State = iota
	Idle
	Active
	IdleInTransaction
	Aborted
)

// Process is what a process does.
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
}

// Active reports whether a process works or waits for something that it needs for its work.
func (p *Process) Active() bool {
	if p.BackendType == ClientBackend {
		return p.State == Active
	}
	return p.WaitType != "Activity" // the events in which idle background processes wait
}

// stateEnd is the number of bytes of the state.
const stateEnd = 4

// tries is how often an entry is read that its process changes meanwhile.
const tries = 3

// Reader reads the processes of one run of a server.
type Reader struct {
	server        *waitevent.Server
	status        entryLayout
	types, states []string
}

// entryLayout has offsets in PgBackendStatus (backend_status.h).
type entryLayout struct{ changeCount, processID, typeNumber int }

// Open finds the variables of a running server. The error wraps waits.ErrUnsupported if its version is not known.
func Open(c cluster.Cluster) (*Reader, error) {
	l, ok := layout.Of(c.Version)
	if !ok {
		return nil, fmt.Errorf("%w: PostgreSQL %d is not known to this release", waits.ErrUnsupported, c.Version)
	}
	server, err := waitevent.Locate(c)
	if err != nil {
		return nil, err
	}
	return &Reader{
		server: server, types: l.BackendTypes, states: l.BackendStates,
		status: entryLayout{
			changeCount: l.PgBackendStatus.StChangecount.Int(), processID: l.PgBackendStatus.StProcpid.Int(),
			typeNumber: l.PgBackendStatus.StBackendType.Int(),
		},
	}, nil
}

// Cluster returns the run of the server that the reader is for.
func (r *Reader) Cluster() cluster.Cluster { return r.server.Cluster }

// Read returns the processes that have an entry in pg_stat_activity. It leaves out a process whose memory does not
// arrive in time: see process.Each. The error wraps waits.ErrServerGone if the server has ended.
func (r *Reader) Read() ([]Process, error) {
	rights, err := r.server.Cluster.Rights()
	if errors.Is(err, process.ErrExited) {
		return nil, waits.ErrServerGone
	}
	if err != nil {
		return nil, err
	}
	pids, err := procfs.Children(r.server.Target.Postmaster)
	if err != nil {
		return nil, fmt.Errorf("list the server's processes: %w", err)
	}
	processes := make([]Process, 0, len(pids))
	var denied error
	unreachable := process.Each(pids, r.read, func(pid int, e reading) {
		switch {
		case e.ok && rights.Verify(pid) != nil: // after the read, because it may have executed another program
		case e.ok:
			processes = append(processes, e.process)
		case e.err == unix.EPERM: //nolint:errorlint // as the kernel returns it
			denied = fmt.Errorf("read the memory of process %d: %w", pid, e.err)
		}
	})
	if len(processes) == 0 && denied == nil && len(unreachable) > 0 {
		denied = fmt.Errorf("process %d: %w", unreachable[0], process.ErrUnreachable)
	}
	if len(processes) == 0 && denied != nil {
		return nil, denied
	}
	return processes, nil
}

// reading is the result of reading one process.
type reading struct {
	process Process
	ok      bool // it has an entry
	err     error
}

// read reads one process. It may be left behind, so it changes nothing.
func (r *Reader) read(pid int, memory process.MemoryOf) (e reading) {
	e.process, e.ok, e.err = r.process(pid, memory)
	return e
}

// process reads one process; false if it has no entry, because it starts or ends, or has none at all.
func (r *Reader) process(pid int, memory process.MemoryOf) (p Process, ok bool, err error) {
	t := &r.server.Target
	var pointers [16]byte
	if err := memory.ReadPieces(pointers[:], []process.Piece{{Address: t.WaitPointer, Length: 8},
		{Address: t.Status, Length: 8}}); err != nil {
		return p, false, err
	}
	wait, entry := binary.NativeEndian.Uint64(pointers[:]), binary.NativeEndian.Uint64(pointers[8:])
	if wait == 0 || entry == 0 {
		return p, false, nil
	}
	size := t.Layout.State + stateEnd
	buffer := make([]byte, size+8)
	number := func(at int) int { return int(binary.NativeEndian.Uint32(buffer[at:])) }
	for range tries {
		// In this order: the count before, the entry and the event, the count after.
		err := memory.ReadPieces(buffer, []process.Piece{{Address: entry, Length: size}, {Address: wait, Length: 4},
			{Address: entry + uint64(r.status.changeCount), Length: 4}})
		if err != nil {
			return p, false, err
		}
		if before := number(r.status.changeCount); before%2 == 0 && before == number(size+4) {
			ok = true
			break
		}
	}
	kind := number(r.status.typeNumber)
	if !ok || number(r.status.processID) != r.serverPID(pid) || kind <= 0 || kind >= len(r.types) {
		return p, false, nil
	}
	p = Process{PID: pid, BackendType: r.types[kind]}
	switch p.BackendType {
	case ClientBackend:
		p.State = r.state(number(t.Layout.State))
	case BackgroundWorker:
		if strings.Contains(cluster.ReadTitle(pid), ParallelWorker+" for PID ") {
			p.BackendType = ParallelWorker
		}
	}
	if event := uint32(number(size)); event != 0 {
		p.WaitType, p.WaitEvent, _ = r.server.Names.Name(event)
	}
	return p, true, nil
}

// state translates a state of the server's version.
func (r *Reader) state(number int) State {
	if number < 0 || number >= len(r.states) {
		return Other
	}
	switch r.states[number] {
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

func (r *Reader) serverPID(pid int) int {
	if r.server.Target.ServerPID == nil {
		return pid
	}
	return r.server.Target.ServerPID(pid)
}
