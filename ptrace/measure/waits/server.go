package waits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"pg_stat_backtrace/ptrace/process"
)

// Server says where a server's variables are. Each variable has the same address in the postmaster and its children.
type Server struct {
	// Postmaster is the process id of the postmaster.
	Postmaster int
	// Rights are the rights of the postmaster. Processes with other rights are left out. nil: no process is left out.
	Rights *process.Rights
	// WaitPointer, ProcGlobal and Status are the addresses of my_wait_event_info, ProcGlobal and MyBEEntry.
	WaitPointer, ProcGlobal, Status uint64
	// ExecutorStart and ExecutorEnd are the offsets of standard_ExecutorStart and standard_ExecutorEnd in the server's
	// program file; 0: unknown, or not in memory that is mapped from that file. OpenProgram opens the file.
	ExecutorStart, ExecutorEnd uint64
	OpenProgram                func() (*os.File, error)
	Layout                     Layout
	// ServerPID returns the id by which the server knows a process. It differs from the id here if the server runs in a
	// container. Local returns the id here for such an id. nil: the ids are the same.
	ServerPID, Local func(pid int) int
}

// Layout has the offsets, in bytes, of fields of the server's structures. They depend on its major version.
type Layout struct {
	// ProcSize is the size of PGPROC; WaitEvent and PID are offsets in it. ProcCount is an offset in PROC_HDR.
	ProcSize, WaitEvent, PID, ProcCount int
	// QueryID, State, QueryStart and StateStart are offsets in PgBackendStatus, Idle and Running values of State.
	QueryID, State, QueryStart, StateStart int
	Idle, Running                          int
	// Uring means that this version may use io_uring for reads and writes.
	Uring bool
}

// procs is a server, and its array of PGPROC structures in shared memory.
type procs struct {
	*Server

	start uint64 // start time of the postmaster, in ticks since boot
	first uint64 // address of the first PGPROC
	count int
	// memory identifies the shared memory by device and inode of its mapping. After a crash, new shared memory can have
	// the same address.
	memory [3]uint64
	// unreachable are the children whose memory could not be read in time.
	unreachable []int
	// all and pieces are used by readAll.
	all    *process.Memory
	pieces []process.Piece
}

// maxProcs is the largest number of PGPROC structures that is accepted. It is more than PostgreSQL's limit of
// max_connections.
const maxProcs = 1 << 19

// findProcs finds the array of PGPROC structures, and verifies the layout with the server's present processes.
func findProcs(s *Server) (*procs, error) {
	stat, err := process.ReadStat(s.Postmaster)
	if process.LacksResources(err) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServerGone, err)
	}
	p := &procs{Server: s, start: stat.StartTime}
	if p.first, p.count, err = p.read(); err != nil {
		return nil, err
	}
	if p.memory, err = p.readMemory(); err != nil {
		return nil, err
	}
	return p, p.verify()
}

// readMemory returns the device (major, minor) and the inode of the mapping in which the array lies.
func (p *procs) readMemory() ([3]uint64, error) {
	maps, err := process.Maps(p.Postmaster)
	if process.LacksResources(err) {
		return [3]uint64{}, err
	}
	if err != nil {
		return [3]uint64{}, fmt.Errorf("%w: %w", ErrServerGone, err)
	}
	for i := range maps {
		if m := &maps[i]; m.Start <= p.first && p.first < m.End {
			return [3]uint64{uint64(m.Major), uint64(m.Minor), m.Inode}, nil
		}
	}
	return [3]uint64{}, fmt.Errorf("%w: its shared memory is not mapped", ErrServerGone)
}

// read reads the address of the array and the number of its elements.
func (p *procs) read() (first uint64, count int, err error) {
	memory := process.NewMemory(p.Postmaster)
	header, err := word(memory, p.ProcGlobal)
	if err == nil && header != 0 {
		first, err = word(memory, header)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the server's processes: %w", err)
	}
	var n [4]byte
	if header == 0 || first == 0 {
		return 0, 0, fmt.Errorf("%w: the server has no shared memory yet", ErrServerGone)
	}
	if err := readFull(memory, header+uint64(p.Layout.ProcCount), n[:]); err != nil {
		return 0, 0, fmt.Errorf("read the server's processes: %w", err)
	}
	count = int(binary.NativeEndian.Uint32(n[:]))
	if count < 1 || count > maxProcs {
		return 0, 0, fmt.Errorf("%w: the server's memory is not laid out as expected (%d processes)", ErrUnsupported, count)
	}
	return first, count, nil
}

// alive returns ErrServerGone if the server has ended, or uses other shared memory than when findProcs found it. If its
// memory cannot be read in time, or this process lacks resources, the result is nil.
func (p *procs) alive() error {
	stat, err := process.ReadStat(p.Postmaster)
	if process.LacksResources(err) {
		return nil
	}
	if err != nil || stat.StartTime != p.start || process.HasEnded(&stat) {
		return ErrServerGone
	}
	first, count, err := p.read()
	switch {
	case errors.Is(err, process.ErrUnreachable), process.LacksResources(err):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrServerGone, err)
	case first != p.first || count != p.count:
		return fmt.Errorf("%w: it has new shared memory", ErrServerGone)
	}
	memory, err := p.readMemory()
	if process.LacksResources(err) {
		return nil
	}
	if err == nil && memory != p.memory {
		err = fmt.Errorf("%w: it has new shared memory, as after a crash", ErrServerGone)
	}
	return err
}

// verify checks the layout with the server's processes: my_wait_event_info of each must point into a PGPROC with its process
// id. The error means that this is wrong for a process, or could not be checked for any.
func (p *procs) verify() error {
	const tries = 3 // a process may just be starting or ending
	var children []int
	differ := false
	for range tries {
		var err error
		if children, err = process.Children(p.Postmaster); err != nil {
			return fmt.Errorf("list the server's processes: %w", err)
		}
		right, wrong := 0, 0
		for _, pid := range children {
			i, ok := p.slotOf(pid)
			switch {
			case ok && p.pidAt(i) == p.serverPID(pid):
				right++
			case ok:
				wrong++
			}
		}
		if right > 0 && wrong == 0 {
			return nil
		}
		differ = differ || wrong > 0
	}
	if len(p.unreachable) > 0 && !differ {
		return fmt.Errorf("%w: process %d: %w", ErrUnsupported, p.unreachable[0], process.ErrUnreachable)
	}
	return fmt.Errorf("%w: the structures of this server differ from those of its version (%d processes were looked at)",
		ErrUnsupported, len(children))
}

func (p *procs) serverPID(pid int) int {
	if p.ServerPID == nil {
		return pid
	}
	return p.ServerPID(pid)
}

// slotOf returns the index of a process's PGPROC; false if it has none, has other rights than p.Rights, or cannot be read in
// time (p.unreachable).
func (p *procs) slotOf(pid int) (int, bool) {
	var at uint64
	var err error
	read := func() {
		process.ProbeReadable(pid) // while this waits, this process can be killed, unlike while word waits
		at, err = word(process.MemoryOf(pid), p.WaitPointer)
	}
	if slices.Contains(p.unreachable, pid) {
		return 0, false
	}
	if !process.WithTimeout(pid, read, func() {}) {
		p.unreachable = append(p.unreachable, pid)
		return 0, false
	}
	if err != nil || p.Rights != nil && p.Rights.Verify(pid) != nil {
		return 0, false
	}
	size := uint64(p.Layout.ProcSize)
	offset := at - p.first - uint64(p.Layout.WaitEvent)
	if offset/size >= uint64(p.count) || offset%size != 0 {
		return 0, false
	}
	return int(offset / size), true
}

// pidAt returns the process id in a PGPROC, 0 if it cannot be read.
func (p *procs) pidAt(i int) int { return int(p.number(i, p.Layout.PID)) }

// eventAt returns the wait event in a PGPROC, 0 if it cannot be read.
func (p *procs) eventAt(i int) uint32 { return p.number(i, p.Layout.WaitEvent) }

func (p *procs) number(i, offset int) uint32 {
	var n [4]byte
	if readFull(process.NewMemory(p.Postmaster), p.first+uint64(i*p.Layout.ProcSize+offset), n[:]) != nil {
		return 0
	}
	return binary.NativeEndian.Uint32(n[:])
}

// readAll reads the wait event and the process id of every PGPROC, in pairs, with as few system calls as possible. Only one
// goroutine may call it at a time.
func (p *procs) readAll(into []uint32) error {
	if p.pieces == nil {
		p.all = process.NewMemory(p.Postmaster)
		p.pieces = make([]process.Piece, 0, 2*p.count)
		for i := range p.count {
			base := p.first + uint64(i*p.Layout.ProcSize)
			p.pieces = append(p.pieces, process.Piece{Address: base + uint64(p.Layout.WaitEvent), Length: 4},
				process.Piece{Address: base + uint64(p.Layout.PID), Length: 4})
		}
	}
	if err := p.all.ReadPieces(bytesOf(into), p.pieces); err != nil {
		p.all = process.NewMemory(p.Postmaster) // the next call tries again
		return fmt.Errorf("read the server's wait events: %w", err)
	}
	return nil
}

// reader reads memory of a process.
type reader interface {
	Read(addr uint64, p []byte) (int, error)
}

func word(memory reader, address uint64) (uint64, error) {
	var w [8]byte
	err := readFull(memory, address, w[:])
	return binary.NativeEndian.Uint64(w[:]), err
}

func readFull(memory reader, address uint64, into []byte) error {
	n, err := memory.Read(address, into)
	if err == nil && n < len(into) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// local returns the id of a process in this PID namespace. serverPID is the id by which the server knows the process.
func (p *procs) local(serverPID int) int {
	if p.Local == nil {
		return serverPID
	}
	return p.Local(serverPID)
}
