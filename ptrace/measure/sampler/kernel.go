package sampler

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
)

// ErrUnsupported means that this kernel or architecture, or the place where this process runs, lacks what a Sampler
// needs.
var ErrUnsupported = errors.New("processes cannot be sampled without a stop here")

// Limits. The first three have the same values in sampler.bpf.c.
const (
	MaxTargets = 64        // threads of one Sampler
	MaxSamples = 1024      // samples of one Processor until Reset
	MaxStack   = 256 << 10 // bytes of one stack

	// The stack areas of all processors together have allAreas bytes at most. Each has room for at least one stack.
	allAreas  = 32 << 20
	leastArea = MaxStack + MaxStack/4
	mostArea  = 4 << 20
)

// outcome is the result of one look at a thread.
type outcome uint32

// The outcomes.
const (
	outcomeNone    outcome = iota // not a sample
	outcomeRead                   // registers and stack
	outcomeNoStack                // registers only: the stack is not readable
)

// rawTarget is a thread to sample (struct sample_target). The caller sets the first four fields. Addresses and lengths are
// in bytes.
type rawTarget struct {
	StackEnd uint64 // address of the first byte above the stack
	TID      uint32 // in the host's PID namespace; 0: no thread
	MaxStack uint32
	RedZone  uint32 // bytes below the stack pointer that belong to the stack

	Wanted   uint32 // how many looks wait for ReadWanted to read it
	Gone     uint32 // not 0: it has exited
	Last     uint32 // number of its last sample, plus 1; 0: none, or it may have run since
	Started  uint64 // this and the next two: at its last sample
	Switches uint64 // how often it had left a processor
	State    uint32

	WantedState    uint32 // this and the next: at the looks that wait
	WantedSwitches uint64
}

// rawSample is one look at a thread (struct stack_sample).
type rawSample struct {
	Registers   [21]uint64 // struct pt_regs; fields that no unwinder needs are 0
	Started     uint64     // when the thread started, in ns since boot
	StackEnd    uint64
	StackStart  uint64 // address of the first byte of the copy
	StackLength uint64 // of the copy
	StackAt     uint64 // offset of the copy in Stacks
	State       uint32 // __state of struct task_struct; 0: it ran, or could run
	Target      uint32 // index of the target
	Times       uint32 // how many timer interrupts found the thread like this
	Outcome     outcome
}

// state describes a processor (struct cpu_state).
type state struct {
	period     uint64
	first      uint64
	until      uint64
	number     uint32
	numTargets uint32
	stackUsed  uint64
	numSamples uint32
	missed     uint32
	targets    [MaxTargets]rawTarget
	samples    [MaxSamples]rawSample
}

// kernel is the loaded program.
type kernel struct {
	*ebpf.Collection

	Processors []*processor

	memory [][]byte
}

// loadKernel loads the program for processors, which are numbers of the kernel's. The error is ErrUnsupported, or says
// which privilege is missing (fs.ErrPermission).
func loadKernel(processors []int) (*kernel, error) {
	area := min(max(allAreas/max(1, len(processors))&^(os.Getpagesize()-1), leastArea), mostArea)
	spec, err := loader().Spec(map[string]any{"stack_area": uint64(area)})
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"processors", "stacks", "clocks", "wakeups"} {
		spec.Maps[name].MaxEntries = uint32(len(processors))
	}
	spec.Maps["stacks"].ValueSize = uint32(area)
	s := &kernel{}
	if s.Collection, err = loader().Load(spec, "start_timer", "stop_timer", "read_wanted"); err != nil {
		return nil, err
	}
	if err := s.prepare(processors, area); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// loader loads the programs.
func loader() *bpf.Loader {
	return &bpf.Loader{Read: loadSampler, Unsupported: ErrUnsupported, Release: "6.10", HostPIDs: true}
}

// Check returns why nothing can be sampled here; nil if it can.
func Check() error {
	s, err := loadKernel([]int{0})
	if err != nil {
		return err
	}
	s.Close()
	return nil
}

// prepare maps the memory that the processors share with the program, and makes a ring for each.
func (s *kernel) prepare(processors []int, area int) error {
	states, err := s.mapMemory(s.Maps["processors"].FD(), 0, len(processors)*stateSize, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	stacks, err := s.mapMemory(s.Maps["stacks"].FD(), 0, len(processors)*area, unix.PROT_READ)
	if err != nil {
		return err
	}
	for i, number := range processors {
		p := newProcessor(states[i*stateSize:], stacks[i*area:][:area:area], s.Programs, uint32(i))
		s.Processors = append(s.Processors, p)
		p.state.number = uint32(number)
		if err := s.makeRing(p); err != nil {
			return err
		}
	}
	return nil
}

// makeRing makes the ring that wakes the processor's thread.
func (s *kernel) makeRing(p *processor) error {
	size := unix.Getpagesize()
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "wakeup", Type: ebpf.RingBuf, MaxEntries: uint32(size)})
	if err != nil {
		return loader().Error("make a ring", err)
	}
	p.ring = ring
	if err := s.Maps["wakeups"].Put(p.request.index, ring); err != nil {
		return loader().Error("fill a table", err)
	}
	consumer, err := s.mapMemory(ring.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	producer, err := s.mapMemory(ring.FD(), int64(size), size, unix.PROT_READ)
	if err != nil {
		return err
	}
	p.consumed, p.produced = wordAt(consumer), wordAt(producer)
	return nil
}

// mapMemory maps memory of the kernel's, until Close.
func (s *kernel) mapMemory(fd int, offset int64, size, protection int) ([]byte, error) {
	page := unix.Getpagesize()
	p, err := unix.Mmap(fd, offset, (size+page-1)&^(page-1), protection, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memory of the kernel's: %w", err)
	}
	s.memory = append(s.memory, p)
	return p, nil
}

// Close releases everything. Without its descriptors the kernel ends the timers.
func (s *kernel) Close() {
	for _, p := range s.Processors {
		if p.ring != nil {
			_ = p.ring.Close()
		}
	}
	for _, p := range s.memory {
		_ = unix.Munmap(p)
	}
	if s.Collection != nil {
		s.Collection.Close()
	}
	*s = kernel{}
}
