package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
)

// Config says what the BPF programs do. It cannot change after Load.
type Config struct {
	Probes []Probe
	// Postmaster restricts the hits to this process and its children; 0: only the parameter pid of Attach restricts them.
	Postmaster int
	// Calls times each call from entry to return. Then each probe must be at the first instruction of a function.
	Calls bool
	// Ring is the size in bytes of the ring for stacks, a power of two; 0: 16 MiB.
	Ring int
	// Processes is the number of pairs of probe and process for which there is room in Figures, and the number of pairs
	// for which there is room in Others; 0: 8192.
	Processes int
}

// Programs are the loaded BPF programs and their maps.
type Programs struct {
	// Uprobes says for which threads this kernel runs the programs. Load sets it.
	Uprobes bpf.Uprobes

	loader     *bpf.Loader
	collection *ebpf.Collection
	program    *ebpf.Program
	attachType uint32
	memory     []byte
	control    *control
	ring       *ringbuf.Reader
	record     ringbuf.Record
	probes     int
}

// Link is an attachment. Close removes its breakpoints. When this process ends, the kernel removes them, too.
type Link struct{ fd int }

// Site is an instruction in a file.
type Site struct {
	// Probe is the index in Config.Probes.
	Probe int
	// Offset is the place in the file, in bytes. Counter is the place of a counter that the kernel increments while the
	// probe is attached (a semaphore of a static probe); 0: none.
	Offset, Counter uint64
}

// Numbers of the kernel's interface (linux/bpf.h).
const (
	traceUprobeMulti   = 48
	traceUprobeSession = 57
)

// errNotSupported is ENOTSUPP (linux/errno.h), for which user space has no name.
const errNotSupported = unix.Errno(524)

// Load loads the programs. The error wraps fs.ErrPermission if a privilege is missing, or ErrUnsupported.
func Load(c Config) (p *Programs, err error) {
	if len(c.Probes) == 0 || len(c.Probes) > MaxProbes {
		return nil, fmt.Errorf("%d probes: 1 to %d are possible", len(c.Probes), MaxProbes)
	}
	l := loader(c.Calls)
	spec, err := l.Spec(map[string]any{"postmaster": uint32(c.Postmaster)})
	if err != nil {
		return nil, err
	}
	c.setSizes(spec)
	p = &Programs{loader: l, probes: len(c.Probes), attachType: traceUprobeMulti}
	name := "passed"
	if c.Calls {
		name, p.attachType = "called", traceUprobeSession
	}
	defer func() {
		if err != nil {
			p.Close()
			p = nil
		}
	}()
	if p.collection, err = l.Load(spec, name); err != nil {
		return p, err
	}
	p.program = p.collection.Programs[name]
	if p.Uprobes, err = bpf.FindUprobes(p.program.FD(), p.attachType); err != nil {
		return p, l.Error("attach a program", err)
	}
	return p, p.prepare(&c)
}

// loader returns the loader of the BPF programs. If the parameter calls is set, the programs time calls. Otherwise they
// count hits.
func loader(calls bool) *bpf.Loader {
	l := &bpf.Loader{Read: loadProbe, Unsupported: ErrUnsupported, Release: "6.6", HostPIDs: true}
	if calls {
		l.Release = "6.13"
	}
	return l
}

// setSizes sets the sizes of the BPF maps.
func (c *Config) setSizes(spec *ebpf.CollectionSpec) {
	n := uint32(len(c.Probes))
	spec.Maps["probes"].MaxEntries = n
	spec.Maps["latencies"].MaxEntries = n
	if c.Processes > 0 {
		spec.Maps["processes"].MaxEntries = uint32(c.Processes)
	}
	spec.Maps["processes"].MaxEntries += n
	switch {
	case c.Postmaster == 0:
		spec.Maps["others"].MaxEntries = 0 // without a postmaster all processes are in Figures
	case c.Processes > 0:
		spec.Maps["others"].MaxEntries = uint32(c.Processes)
	}
	spec.Maps["others"].MaxEntries += n
	switch {
	case c.Ring > 0:
		spec.Maps["hits"].MaxEntries = uint32(c.Ring)
	case !c.copies():
		spec.Maps["hits"].MaxEntries = uint32(os.Getpagesize())
	}
}

// copies reports whether a probe copies stacks or arguments to user space.
func (c *Config) copies() bool {
	for i := range c.Probes {
		if c.Probes[i].Stack || len(c.Probes[i].Arguments) > 0 {
			return true
		}
	}
	return false
}

// prepare writes the probes to the BPF maps, and opens the maps that this process reads.
func (p *Programs) prepare(c *Config) error {
	for i := range c.Probes {
		packed, err := c.Probes[i].pack()
		if err != nil {
			return err
		}
		if err := p.collection.Maps["probes"].Put(uint32(i), &packed); err != nil {
			return fmt.Errorf("write a table of the kernel programs: %w", err)
		}
		rest := figuresKey{Probe: uint32(i)}
		if err := p.collection.Maps["processes"].Put(&rest, &Figures{}); err != nil {
			return fmt.Errorf("write a table of the kernel programs: %w", err)
		}
		if err := p.collection.Maps["others"].Put(&rest, uint64(0)); err != nil {
			return fmt.Errorf("write a table of the kernel programs: %w", err)
		}
	}
	var err error
	if p.memory, err = unix.Mmap(p.collection.Maps["controls"].FD(), 0, os.Getpagesize(),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map a table of the kernel programs: %w", err)
	}
	p.control = (*control)(unsafe.Pointer(unsafe.SliceData(p.memory)))
	if p.ring, err = ringbuf.NewReader(p.collection.Maps["hits"]); err != nil {
		return fmt.Errorf("open the ring of stacks: %w", err)
	}
	return nil
}

// Attach puts breakpoints on instructions of a file: in all processes that have mapped the file (pid 0), or in one process.
// The path may lead to an open descriptor (/proc/self/fd/N). The error wraps fs.ErrNotExist if the process has ended, and
// ErrUnsupported if the kernel would not count the hits of all its threads.
func (p *Programs) Attach(path string, pid int, sites []Site) (*Link, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, fmt.Errorf("attach to %q: %w", path, err)
	}
	offsets, counters, cookies := make([]uint64, len(sites)), make([]uint64, len(sites)), make([]uint64, len(sites))
	counted := false
	for i, s := range sites {
		if s.Probe < 0 || s.Probe >= p.probes {
			return nil, fmt.Errorf("there is no probe %d", s.Probe)
		}
		offsets[i], counters[i], cookies[i] = s.Offset, s.Counter, uint64(s.Probe)
		counted = counted || s.Counter != 0
	}
	if len(sites) == 0 {
		return nil, errors.New("no instruction to attach to")
	}
	if err := p.CheckThreads(pid); err != nil {
		return nil, err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(name)
	pin.Pin(&offsets[0])
	pin.Pin(&counters[0])
	pin.Pin(&cookies[0])
	l := bpf.UprobeLink{
		Program: uint32(p.program.FD()), AttachType: p.attachType, Path: bpf.Address(name),
		Offsets: bpf.Address(&offsets[0]), Cookies: bpf.Address(&cookies[0]), Count: uint32(len(sites)), PID: uint32(pid),
	}
	if counted {
		l.Counters = bpf.Address(&counters[0])
	}
	fd, errno := l.Create()
	switch errno {
	case 0:
		return &Link{fd}, nil
	case unix.ESRCH:
		return nil, fmt.Errorf("attach to process %d: %w", pid, fs.ErrNotExist)
	case unix.EPERM:
		return nil, p.loader.Error("attach a program", errno)
	case errNotSupported:
		return nil, errors.New("the kernel cannot put a breakpoint on this instruction")
	default:
		return nil, fmt.Errorf("the kernel refuses the breakpoint: %w", errno)
	}
}

// CheckThreads returns an error, ErrUnsupported, if the kernel does not count the hits of all threads of an attached
// process. For pid 0 (all processes), the result is always nil, because the kernel then counts the hits of all threads.
func (p *Programs) CheckThreads(pid int) error {
	if pid == 0 {
		return nil
	}
	if err := p.Uprobes.CheckThreads(pid); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return nil
}

// Close removes the breakpoints. It returns when no process runs the BPF program for them any more.
func (l *Link) Close() {
	if l != nil && l.fd > 0 {
		_ = unix.Close(l.fd)
		l.fd = 0
	}
}

// SetBudget sets how many stacks may be copied from now on. One hit in every gets a stack, chosen at random.
func (p *Programs) SetBudget(stacks int, every int) {
	atomic.StoreUint32(&p.control.every, uint32(max(1, every)))
	atomic.StoreInt64(&p.control.stacks, int64(stacks))
}

// Budget returns how many stacks may still be copied. It may be negative.
func (p *Programs) Budget() int { return int(atomic.LoadInt64(&p.control.stacks)) }

// Close frees all resources. Links must be closed before.
func (p *Programs) Close() {
	if p.ring != nil {
		_ = p.ring.Close()
	}
	if p.memory != nil {
		_ = unix.Munmap(p.memory)
		p.memory, p.control = nil, nil
	}
	if p.collection != nil {
		p.collection.Close()
	}
}
