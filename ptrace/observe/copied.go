package observe

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// EngineCopied is Snapshot.Engine of snapshots of a CopiedProcess: a BPF program has copied the stack of a thread that
// caused its run.
const EngineCopied = "copied"

// CopiedProcess is a process whose threads cause runs of BPF programs. These programs copy the threads' registers and stacks,
// and CopiedProcess makes snapshots from the copies.
type CopiedProcess struct {
	held *process.Handle
	maps *snapshot.MapsSnapshot
}

// CopiedStack is a copy of a thread's registers and stack, on x86_64.
type CopiedStack struct {
	TID                                int
	IP, SP, BP, BX, R12, R13, R14, R15 uint64
	// Data begins at SP. Cut means that Data ends before the end of the stack.
	Data []byte
	Cut  bool
}

// NewCopiedProcess opens a handle of the process, and reads its mappings. The errors are those of Observe, and
// process.ErrUnreachable if the mappings cannot be read in time. The caller must call Release.
func NewCopiedProcess(t process.Target) (*CopiedProcess, error) {
	if err := process.CheckPID(t.PID); err != nil {
		return nil, err
	}
	held, err := process.Hold(t.PID)
	if err != nil {
		return nil, err
	}
	p := &CopiedProcess{held: held}
	stat, err := process.ReadTarget(t.PID)
	if err == nil {
		err = t.Identify(&stat)
	}
	if err == nil {
		p.maps, err = mapsInTime(t.PID)
	}
	if err != nil {
		held.Release()
		return nil, err
	}
	return p, nil
}

// mapsInTime is Maps with a timeout, after which the error is process.ErrUnreachable.
func mapsInTime(pid int) (*snapshot.MapsSnapshot, error) {
	var maps *snapshot.MapsSnapshot // maps and err are no results of mapsInTime: after the timeout, the reader may still write to both
	var err error
	if !process.WithTimeout(pid, func() { maps, err = Maps(pid) }, func() {}) {
		return nil, fmt.Errorf("process %d: %w", pid, process.ErrUnreachable)
	}
	return maps, err
}

// StackEnd returns the end of the main thread's stack without the text of the program's arguments and environment, which the
// kernel has put behind it and which are often longer than the stack; 0 if it is not known.
func (p *CopiedProcess) StackEnd() (end uint64) {
	const arguments = 64 // bytes: the first words of the arguments
	for _, span := range p.maps.Spans() {
		if begin := p.maps.Stat().StackStart; span.Grows {
			end = span.End
			if span.Start <= begin && begin < end {
				end = min(end, begin+arguments)
			}
		}
	}
	return end
}

// Maps returns the mappings as of the last Refresh, or of NewCopiedProcess. The caller must not change them.
func (p *CopiedProcess) Maps() []process.Mapping { return p.maps.Maps() }

// Refresh reads the mappings again. The errors are those of NewCopiedProcess. Existing snapshots keep the old mappings.
func (p *CopiedProcess) Refresh() error {
	maps, err := mapsInTime(p.maps.Stat().PID)
	if err == nil {
		p.maps = maps
	}
	return err
}

// Lives reports whether the process has not ended yet.
func (p *CopiedProcess) Lives() bool { return p.held.Lives() }

// Release releases the handle of the process.
func (p *CopiedProcess) Release() { p.held.Release() }

// Snapshot returns a snapshot of one thread, made from the copy c. It refers to c.Data, which the caller must not change.
func (p *CopiedProcess) Snapshot(c *CopiedStack) *snapshot.Snapshot {
	// The keys are the indexes of the registers in struct user_regs_struct (asm/user_64.h), in words.
	registers := make([]byte, 27*8)
	for word, value := range map[int]uint64{
		0: c.R15, 1: c.R14, 2: c.R13, 3: c.R12, 4: c.BP, 5: c.BX, 16: c.IP, 19: c.SP,
	} {
		binary.NativeEndian.PutUint64(registers[8*word:], value)
	}
	l := p.maps
	return &snapshot.Snapshot{
		PID: l.Stat().PID, Engine: EngineCopied, Maps: l.Maps(), MapsSnapshot: l,
		Threads: []snapshot.Thread{{
			TID: c.TID, Name: l.Stat().Comm, State: 'R', Registers: registers,
			Stack: snapshot.Stack{Start: c.SP, Data: c.Data, Cut: c.Cut},
		}},
	}
}
