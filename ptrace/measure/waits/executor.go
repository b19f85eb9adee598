package waits

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"pg_stat_backtrace/ptrace/process"
)

// TraceAll sets whether the BPF programs report every wait of all processes.
func (p *programs) TraceAll(on bool) error {
	var value uint32
	if on {
		value = 1
	}
	if err := p.kernel.Maps[waitsMapTraceAll].Put(uint32(0), value); err != nil {
		return fmt.Errorf("trace all processes: %w", err)
	}
	return nil
}

// probe is the attachment of a BPF program to the executor of one process.
type probe struct {
	link    link.Link
	started uint64 // start time of the process: Stat.StartTime
}

// ProbeExecutor sets whether the programs report each start and end of the executor of one process. on can be false even
// after the process has ended. The error wraps errPrograms before Linux 6.6, and for a server program whose executor was
// not found.
func (p *programs) ProbeExecutor(pid int, on bool) error {
	if !on {
		return p.endProbe(pid)
	}
	started, err := startOf(pid)
	if err != nil {
		return err
	}
	if old, has := p.probes[pid]; has && old.started == started {
		return nil
	}
	// The old probe does not fire for a later process with the same id.
	if err := p.endProbe(pid); err != nil {
		return err
	}
	l, err := p.attachExecutor(pid)
	if err != nil {
		return err
	}
	p.probes[pid] = probe{l, started}
	if now, err := startOf(pid); err != nil || now != started {
		return errors.Join(fmt.Errorf("%w: process %d has ended", process.ErrGone, pid), p.endProbe(pid))
	}
	return nil
}

// endProbe detaches the BPF program from the executor of a process, if it is attached.
func (p *programs) endProbe(pid int) error {
	old, has := p.probes[pid]
	if !has {
		return nil
	}
	delete(p.probes, pid)
	return old.link.Close()
}

// probeInterval is the shortest time between two calls of EndProbesOfEnded that check the processes.
const probeInterval = time.Second

// EndProbesOfEnded detaches the BPF program from the executor of processes that have ended. It does nothing within
// probeInterval of the last call that checked the processes.
func (p *programs) EndProbesOfEnded(now time.Time) error {
	if now.Sub(p.checked) < probeInterval {
		return nil
	}
	p.checked = now
	var all error
	for pid, one := range p.probes {
		started, err := startOf(pid)
		if errors.Is(err, process.ErrGone) || err == nil && started != one.started {
			all = errors.Join(all, p.endProbe(pid))
		}
	}
	return all
}

// startOf returns the start time of a process. The error wraps process.ErrGone if the process has ended.
func startOf(pid int) (uint64, error) {
	stat, err := process.ReadStat(pid)
	if err == nil && process.HasEnded(&stat) {
		err = fmt.Errorf("%w: process %d", process.ErrGone, pid)
	}
	return stat.StartTime, err
}

// attachExecutor attaches the BPF program to the executor of one process.
func (p *programs) attachExecutor(pid int) (link.Link, error) {
	if p.server.ExecutorStart == 0 || p.server.ExecutorEnd == 0 || p.server.OpenProgram == nil {
		return nil, fmt.Errorf("%w: the executor of the server's program is not known, or not in the memory of its file", errPrograms)
	}
	if err := p.loadExecutor(); err != nil {
		return nil, err
	}
	file, err := p.server.OpenProgram()
	if err != nil {
		return nil, fmt.Errorf("open the program of process %d: %w", pid, err)
	}
	defer func() { _ = file.Close() }()
	program, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return nil, fmt.Errorf("open the program of process %d: %w", pid, err)
	}
	l, err := program.UprobeMulti(nil, p.executor, &link.UprobeMultiOptions{
		Addresses: []uint64{p.server.ExecutorStart, p.server.ExecutorEnd},
		Cookies:   []uint64{uint64(ExecutorStart), uint64(ExecutorEnd)}, PID: uint32(pid),
	})
	if err != nil {
		return nil, refusal(fmt.Errorf("attach to the executor of process %d: %w", pid, err))
	}
	return l, nil
}

// loadExecutor loads the BPF program for the executor, unless it is loaded. The program shares the BPF maps of the other
// programs.
func (p *programs) loadExecutor() error {
	if p.executor != nil {
		return nil
	}
	spec, err := p.server.spec()
	if err != nil {
		return err
	}
	program := spec.Programs[waitsProgExecutor]
	program.AttachType = ebpf.AttachTraceUprobeMulti
	spec.Programs = map[string]*ebpf.ProgramSpec{waitsProgExecutor: program}
	shared := make(map[string]*ebpf.Map)
	for name := range spec.Maps {
		switch name {
		case waitsMapSlots, waitsMapSlotOfPid, waitsMapTrace, waitsMapCounters:
			shared[name] = p.kernel.Maps[name]
		default:
			if name[0] != '.' {
				delete(spec.Maps, name)
			}
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return refusal(err)
	}
	defer c.Close()
	p.executor = c.DetachProgram(waitsProgExecutor)
	return nil
}
