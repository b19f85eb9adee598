package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
)

// Figures count the hits of a probe in a process. Hits = Stacks + Lost + Skipped if the probe copies stacks or arguments.
type Figures struct {
	// Hits is the number of hits that met the conditions, Failed the number of all others.
	Hits uint64
	// Stacks are hits that were copied to the ring. Lost are hits for which the ring had no room, Skipped hits that
	// were not copied because of the budget (see Programs.SetBudget).
	Stacks, Lost, Skipped uint64
	Failed                uint64
	// Timed estimates the time spent in the BPF program, in ns; one hit in 64 is measured. It does not include the
	// kernel's own time for the probe.
	Timed uint64
}

// Add adds other figures.
func (f *Figures) Add(o Figures) {
	f.Hits += o.Hits
	f.Stacks += o.Stacks
	f.Lost += o.Lost
	f.Skipped += o.Skipped
	f.Failed += o.Failed
	f.Timed += o.Timed
}

// Process identifies a process. Started is its start time in ns since boot. The zero value stands for all processes for
// which the BPF map had no room.
type Process struct {
	PID     int
	Started uint64
}

// tableKey is a probe and a process that hit it.
type tableKey struct {
	Probe   int
	Process Process
}

// Figures reads the figures of all probes and processes.
func (p *Programs) Figures() (map[tableKey]Figures, error) { //nolint:revive // for this package
	return readTable[Figures](p.collection.Maps["processes"])
}

// Others reads the hits of processes that are not the postmaster or its children: they belong to other servers.
func (p *Programs) Others() (map[tableKey]uint64, error) { //nolint:revive // for this package
	return readTable[uint64](p.collection.Maps["others"])
}

func readTable[V any](table *ebpf.Map) (map[tableKey]V, error) {
	var (
		key   figuresKey
		value V
		all   = make(map[tableKey]V)
	)
	iterator := table.Iterate()
	for iterator.Next(&key, &value) {
		all[tableKey{int(key.Probe), Process{int(key.PID), key.Started}}] = value
	}
	if err := iterator.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("read a table of the kernel programs: %w", err)
	}
	return all, nil
}

// Remove removes the figures of a probe in a process from the BPF map, to make room for another process. It returns the
// removed figures, or zero if there are none. Later hits are counted from zero.
func (p *Programs) Remove(key tableKey) (Figures, error) {
	return remove[Figures](p.collection.Maps["processes"], key)
}

// RemoveOther removes an element of Others from its BPF map, as Remove does.
func (p *Programs) RemoveOther(key tableKey) (uint64, error) {
	return remove[uint64](p.collection.Maps["others"], key)
}

func remove[V any](table *ebpf.Map, key tableKey) (value V, err error) {
	k := figuresKey{Started: key.Process.Started, Probe: uint32(key.Probe), PID: uint32(key.Process.PID)}
	err = table.LookupAndDelete(&k, &value)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return value, fmt.Errorf("remove from a table of the kernel programs: %w", err)
	}
	return value, nil
}

// Latency has the durations of the calls of a function, in ns. Buckets[b] is the number of calls that took 2^b to
// 2^(b+1)-1 ns.
type Latency struct {
	Returns, Total, Longest uint64
	Buckets                 [Buckets]uint64
}

// Latency reads the durations of a probe's calls.
func (p *Programs) Latency(probe int) (l Latency, err error) {
	if err := p.collection.Maps["latencies"].Lookup(uint32(probe), &l); err != nil {
		return l, fmt.Errorf("read a table of the kernel programs: %w", err)
	}
	return l, nil
}

// Hit is a hit with the copies that the BPF program made at the hit.
type Hit struct {
	Probe   int
	Process Process
	TID     int
	UID     int
	// At is the time of the hit, CLOCK_MONOTONIC in ns.
	At uint64
	// Registers has the layout of NT_PRSTATUS.
	Registers []byte
	// StackStart is the address of the first byte of Stack. Wanted is the number of bytes from there to the end of the
	// stack, copied or not. It is math.MaxUint64 if more bytes follow the copy, but the end of the stack is not known.
	StackStart uint64
	Stack      []byte
	Wanted     uint64
	// Arguments are the values of Probe.Arguments. Bit n of Unreadable is set if argument n could not be read. Strings
	// has the strings of those arguments that are strings, in their order, of MaxString bytes at most.
	Arguments  [MaxArguments]uint64
	Unreadable uint32
	Strings    []string
}

// Next reads the next hit into the parameter into. It waits until the deadline, and returns false at the deadline or
// after Close. Registers and Stack are valid until the next call.
func (p *Programs) Next(deadline time.Time, into *Hit) bool {
	p.ring.SetDeadline(deadline)
	for {
		if err := p.ring.ReadInto(&p.record); err != nil {
			return false
		}
		if into.parse(p.record.RawSample) {
			return true
		}
	}
}

// parse reads a record; false if it is too short.
func (h *Hit) parse(sample []byte) bool {
	if len(sample) < hitSize {
		return false
	}
	r := (*hit)(unsafe.Pointer(unsafe.SliceData(sample)))
	stack := sample[hitSize:]
	*h = Hit{
		Probe: int(r.probe), Process: Process{int(r.pid), r.started}, TID: int(r.tid), UID: int(r.uid), At: r.at,
		Registers: h.Registers[:0], StackStart: r.stackStart, Stack: stack[:min(uint64(len(stack)), r.stackLength)],
		Wanted: r.stackWanted, Arguments: r.arguments, Unreadable: r.unreadable, Strings: h.Strings[:0],
	}
	for i := range statusWords {
		var word uint64
		switch {
		case i < registerWords:
			word = r.registers[i]
		case i == threadPointer:
			word = r.threadPointer
		}
		h.Registers = binary.NativeEndian.AppendUint64(h.Registers, word)
	}
	for i := range min(int(r.numStrings), MaxStrings) {
		text := r.strings[i][:]
		for n, c := range text {
			if c == 0 {
				text = text[:n]
				break
			}
		}
		h.Strings = append(h.Strings, string(text))
	}
	return true
}
