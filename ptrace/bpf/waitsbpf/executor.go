package waitsbpf

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// TraceAll has the programs report every wait of all processes, or ends that.
func (p *Programs) TraceAll(on bool) error {
	var value uint32
	if on {
		value = 1
	}
	if err := p.objects.TraceAll.Put(uint32(0), value); err != nil {
		return fmt.Errorf("trace all processes: %w", err)
	}
	return nil
}

// ProbeExecutor has the starts and ends of the executor of one process reported, or ends that. The error wraps
// ErrUnsupported where that is impossible: it takes Linux 6.6, and a program whose executor was found.
func (p *Programs) ProbeExecutor(pid int, on bool) error {
	if l := p.probes[pid]; l != nil {
		if on {
			return nil
		}
		delete(p.probes, pid)
		return l.Close()
	}
	if !on {
		return nil
	}
	if p.server.ExecutorStart == 0 || p.server.ExecutorEnd == 0 {
		return fmt.Errorf("%w: the executor of the server's program is not known", ErrUnsupported)
	}
	if err := p.loadExecutor(); err != nil {
		return err
	}
	program, err := link.OpenExecutable(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return fmt.Errorf("open the program of process %d: %w", pid, err)
	}
	l, err := program.UprobeMulti(nil, p.executor, &link.UprobeMultiOptions{
		Addresses: []uint64{p.server.ExecutorStart, p.server.ExecutorEnd},
		Cookies:   []uint64{uint64(ExecutorStart), uint64(ExecutorEnd)}, PID: uint32(pid),
	})
	if err != nil {
		return refusal(fmt.Errorf("attach to the executor of process %d: %w", pid, err))
	}
	p.probes[pid] = l
	return nil
}

// loadExecutor loads the program for the executor, with the tables of the others.
func (p *Programs) loadExecutor() error {
	if p.executor != nil {
		return nil
	}
	spec, err := loadWaits()
	if err == nil {
		err = configure(spec, p.server)
	}
	if err != nil {
		return fmt.Errorf("read the kernel programs: %w", err)
	}
	program := spec.Programs[waitsProgExecutor]
	program.AttachType = ebpf.AttachTraceUprobeMulti
	spec.Programs = map[string]*ebpf.ProgramSpec{waitsProgExecutor: program}
	m := &p.objects.waitsMaps
	shared := map[string]*ebpf.Map{
		waitsMapSlots: m.Slots, waitsMapSlotOfPid: m.SlotOfPid, waitsMapTrace: m.Trace, waitsMapCounters: m.Counters,
	}
	unused := slices.Collect(maps.Keys(spec.Maps))
	for _, name := range unused {
		if shared[name] == nil && name[0] != '.' {
			delete(spec.Maps, name)
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
