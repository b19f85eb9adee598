package clusterprofile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/state"
)

// server is a running server whose processes can be sampled.
type server struct {
	cluster cluster.Cluster
	waits   *waitevent.Server
	// types and states are the names of backend types and states, see package state. worker is the index in types for background
	// workers, which choose their own type.
	types, states []string
	worker        int
	target        clusterbpf.Server
	procs         int // the greatest number of processes that the server can have
}

// locate finds the variables of a server. It returns waits.ErrUnsupported for an unknown version.
func locate(c cluster.Cluster) (*server, error) {
	w, err := waitevent.Locate(c)
	if err != nil {
		return nil, err
	}
	l, ok := layout.Of(c.Version)
	if !ok {
		return nil, fmt.Errorf("%w: PostgreSQL %d is not known to this release", waits.ErrUnsupported, c.Version)
	}
	variables, err := w.Program.Variables("MyProcPort", "MyBgworkerEntry", "MyBackendType", "error_context_stack")
	if err != nil {
		return nil, err
	}
	s := &server{cluster: c, waits: w, types: state.BackendTypes(c.Version), states: state.States(c.Version)}
	s.worker = slices.Index(s.types, state.BackgroundWorker)
	s.target = clusterbpf.Server{
		Postmaster: c.PostmasterPID, WaitPointer: w.Target.WaitPointer, Status: w.Target.Status,
		Port: variables["MyProcPort"], PortDatabase: l.Port.DatabaseName.Int(), PortUser: l.Port.UserName.Int(),
		Worker: variables["MyBgworkerEntry"], WorkerKind: l.BackgroundWorker.BgwType.Int(), WorkerType: s.worker,
		Context: variables["error_context_stack"], Statement: l.PLpgSQLExecstate.ErrStmt.Int(), Signature: l.PLpgSQLFunction.FnSignature.Int(),
		TypeVariable: variables["MyBackendType"],
		Type:         l.PgBackendStatus.StBackendType.Int(), Database: l.PgBackendStatus.StDatabaseid.Int(),
		User: l.PgBackendStatus.StUserid.Int(), Name: l.PgBackendStatus.StAppname.Int(),
		State: w.Target.Layout.State, QueryID: w.Target.Layout.QueryID,
	}
	return s, s.countProcs()
}

// gone returns the error of a profile if a read of the postmaster failed: ErrServerGone, unless this process lacks resources or the
// postmaster's memory did not arrive in time.
func gone(err error) error {
	if process.LacksResources(err) || errors.Is(err, process.ErrUnreachable) {
		return fmt.Errorf("the postmaster cannot be read: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrServerGone, err)
}

// countProcs reads the greatest number of processes of the server into s.procs.
func (s *server) countProcs() error {
	pid := s.cluster.PostmasterPID
	memory := process.NewMemory(pid)
	var word [8]byte
	if _, err := memory.Read(s.waits.Target.ProcGlobal, word[:]); err != nil {
		return gone(err)
	}
	header := binary.NativeEndian.Uint64(word[:])
	var count [4]byte
	if _, err := memory.Read(header+uint64(s.waits.Target.Layout.ProcCount), count[:]); err != nil {
		return gone(err)
	}
	s.procs = int(binary.NativeEndian.Uint32(count[:]))
	return nil
}

// isForeign reports whether a process has other rights than the postmaster. The BPF programs compare ids and capabilities at every
// sample, but they cannot see whether a process is dumpable.
func (s *server) isForeign(pid int) bool {
	rights := s.waits.Target.Rights
	return rights != nil && errors.Is(rights.Verify(pid), process.ErrNotPermitted)
}

// readWord reads an aligned word of 8 bytes from a process. It may never return: see process.ReadMemory.
func readWord(pid int, address uint64) (uint64, error) {
	var p [8]byte
	if _, err := process.ReadMemory(pid, address, p[:]); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(p[:]), nil
}

// seed describes a process that lives already, as far as its memory can be read. lives is false if the process is not to be
// sampled: it has ended, or has other rights. answers is false if its memory could not be read in time.
func (s *server) seed(pid int) (p clusterbpf.Process, lives, answers bool) {
	stat, err := process.ReadStat(pid)
	if err != nil || process.HasEnded(&stat) || s.isForeign(pid) {
		return clusterbpf.Process{}, false, true
	}
	ready := stat.State == 'R' // the process has a processor, or waits for one
	p = clusterbpf.Process{PID: pid, Running: ready, Runnable: ready}
	described := p
	read := func() {
		process.ProbeReadable(pid) // if this call never returns, this program can still end
		s.describe(&described)
	}
	if !process.WithTimeout(pid, read, func() {}) {
		return p, true, false
	}
	return described, true, true
}

// describe adds the wait event, the state and the query id from the memory of the process.
func (s *server) describe(p *clusterbpf.Process) {
	pid := p.PID
	var word [4]byte
	if at, err := readWord(pid, s.target.WaitPointer); err == nil && at != 0 {
		if _, err := process.ReadMemory(pid, at, word[:]); err == nil {
			p.Event = binary.NativeEndian.Uint32(word[:])
		}
	}
	at, err := readWord(pid, s.target.Status)
	if err != nil || at == 0 {
		return
	}
	if _, err := process.ReadMemory(pid, at+uint64(s.target.State), word[:]); err == nil {
		p.State = binary.NativeEndian.Uint32(word[:])
	}
	p.QueryID, _ = readWord(pid, at+uint64(s.target.QueryID))
}

// nameOf returns names[n], or "#" and the number if there is no such name.
func nameOf(names []string, n uint32) string {
	if int(n) < len(names) {
		return names[n]
	}
	return "#" + strconv.FormatUint(uint64(n), 10)
}
