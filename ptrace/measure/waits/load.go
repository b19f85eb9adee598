package waits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
)

// maxSlots is the largest number of PGPROC structures of a server that can be watched.
const maxSlots = 65534

// errPrograms means that this kernel cannot run the BPF programs, or not for this server.
var errPrograms = errors.New("the kernel programs cannot run here")

// hooks selects the places in the kernel to which the BPF programs are attached.
type hooks int

// The places.
const (
	// atSwitches times a wait from the moment when the process leaves its processor to the moment when it gets one again.
	atSwitches hooks = iota
	// atCalls times a wait from the entry of a system call to its end, for every system call of the host.
	atCalls
	// atFunctions is like atCalls. But the programs run only at the system calls in which a server waits, by trampolines.
	atFunctions
)

// config describes the server. Addresses are those in a child of the postmaster.
type config struct {
	// Postmaster is the process id of the postmaster.
	Postmaster int
	// WaitPointer is the address of my_wait_event_info, FirstWait the address of the wait event in the first PGPROC.
	WaitPointer, FirstWait uint64
	// ProcSize is the size of a PGPROC, Procs their number.
	ProcSize, Procs int
	// Status is the address of MyBEEntry; 0: waits are not attributed to queries, and no process is traced. The other
	// fields are offsets in PgBackendStatus: st_query_id, st_state, st_activity_start_timestamp and
	// st_state_start_timestamp.
	Status                                 uint64
	QueryID, State, QueryStart, StateStart int
	// Idle and Running are the values of st_state for an idle and an active backend.
	Idle, Running int
	// ExecutorStart and ExecutorEnd are the offsets of standard_ExecutorStart and standard_ExecutorEnd in the server's
	// program file; 0: unknown, or not in memory that is mapped from that file. OpenProgram opens the file.
	ExecutorStart, ExecutorEnd uint64
	OpenProgram                func() (*os.File, error)
	// Uring means that the server may use io_uring.
	Uring bool
	// Stacks selects the waits whose stacks are copied.
	Stacks StackOptions

	// unseen makes the programs ignore one in unseen context switches to a server process; 0: none. For tests.
	unseen uint32
}

// uringEnter is the system call in which servers from PostgreSQL 18 on may wait for reads and writes.
const uringEnter = "io_uring_enter"

// A call is a system call in which a server waits. inner is the kernel function that does the work of the call; see place.
// rare means that servers seldom wait in it: the programs are used even if it cannot be timed.
type call struct {
	name   string
	number int
	inner  string
	rare   bool
}

// slot has the figures of one process, in the layout of struct slot in waits.bpf.c.
type slot = waitsSlot

// programs are the loaded BPF programs and their maps.
type programs struct {
	kernel *ebpf.Collection // programs and tables
	extra  []*ebpf.Program  // programs in the field kernel that Attach attaches
	names  []string         // names of the programs in extra
	links  []link.Link
	memory []byte
	slots  []slot
	gone   *ringbuf.Reader
	trace  *ringbuf.Reader
	stacks *ringbuf.Reader

	server   config
	executor *ebpf.Program // nil: not loaded
	probes   map[int]probe // of the executor of traced processes, by process id
	checked  time.Time     // when EndProbesOfEnded last checked the processes
}

// loadPrograms loads the programs without attaching them: the caller may first call Seed for processes that already wait. The
// error wraps fs.ErrPermission or errPrograms.
func loadPrograms(s config, hooks hooks) (p *programs, err error) {
	if s.Procs < 1 || s.Procs > maxSlots {
		return nil, fmt.Errorf("%w: the server has room for %d processes, and at most %d can be watched",
			errPrograms, s.Procs, maxSlots)
	}
	if calls, _ := waitCalls(); hooks != atSwitches && len(calls) == 0 {
		return nil, fmt.Errorf("%w: system calls are timed on x86_64 and aarch64 only", errPrograms)
	}
	if err := s.Stacks.check(hooks); err != nil {
		return nil, err
	}
	spec, err := s.spec()
	if err != nil {
		return nil, err
	}
	p = &programs{server: s, probes: make(map[int]probe)}
	defer func() {
		if err != nil {
			p.Close()
			p = nil
		}
	}()
	if err := p.create(spec, hooks, s.Uring); err != nil {
		return p, refusal(err)
	}
	if err := p.open(s.Procs); err != nil {
		return p, err
	}
	return p, nil
}

// loader returns the loader of the BPF programs.
func loader() *bpf.Loader {
	return &bpf.Loader{Read: loadWaits, Unsupported: errPrograms, Release: "5.8"}
}

// spec returns the programs, with the values of their variables and the sizes of their maps for the server.
func (s *config) spec() (*ebpf.CollectionSpec, error) {
	calls, read := waitCalls()
	var wanted [8]uint64
	for _, call := range calls {
		wanted[call.number>>6] |= 1 << (call.number & 63)
	}
	stackPointer := uint32(0)
	if s.Stacks.on() {
		stackPointer = stackPointerWord
	}
	spec, err := loader().Spec(map[string]any{
		waitsVarSpWord: stackPointer, waitsVarStackEvery: uint32(s.Stacks.Every),
		waitsVarStackLonger: uint64(s.Stacks.Longer), waitsVarUnseen: s.unseen,
		waitsVarPostmaster: uint32(s.Postmaster), waitsVarWaitPointer: s.WaitPointer, waitsVarFirstWait: s.FirstWait,
		waitsVarProcSize: uint32(s.ProcSize), waitsVarProcs: uint32(s.Procs), waitsVarStatusPointer: s.Status,
		waitsVarQueryOffset: uint32(s.QueryID), waitsVarStateOffset: uint32(s.State),
		waitsVarSinceOffset: uint32(s.QueryStart), waitsVarChangedOffset: uint32(s.StateStart),
		waitsVarStateIdle: uint32(s.Idle), waitsVarStateRunning: uint32(s.Running),
		waitsVarWanted: wanted, waitsVarReadCall: uint32(read), waitsVarSendCall: uint32(sendCall().number),
	})
	if err != nil {
		return nil, err
	}
	if !s.Stacks.on() {
		spec.Maps[waitsMapStacks].MaxEntries = uint32(os.Getpagesize())
		spec.Maps[waitsMapStackScratches].MaxEntries = 1
	}
	if s.Status == 0 {
		spec.Maps[waitsMapTrace].MaxEntries = uint32(os.Getpagesize()) // nothing is traced then
	}
	if ordersStores {
		withoutFetch(spec)
	}
	spec.Maps[waitsMapSlots].MaxEntries = uint32(s.Procs)
	spec.Maps[waitsMapSlotOfPid].MaxEntries = pidLimit()
	return spec, nil
}

// withoutFetch replaces atomic additions that return the old value by plain atomic additions, because Linux before 5.12 has
// only plain ones. The programs ignore the old value: they fetch it only because this keeps their stores in order. Call it
// only if the processors keep this order by themselves (ordersStores).
func withoutFetch(spec *ebpf.CollectionSpec) {
	for _, program := range spec.Programs {
		for i := range program.Instructions {
			if op := &program.Instructions[i].OpCode; op.AtomicOp() == asm.FetchAdd {
				*op = op.SetAtomicOp(asm.AddAtomic)
			}
		}
	}
}

// pidLimit is the largest process id of this host, plus one.
func pidLimit() uint32 {
	const most = 1 << 22 // the kernel's own limit
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return most
	}
	var n uint32
	if _, err := fmt.Sscan(string(text), &n); err != nil || n > most {
		return most
	}
	return n + 1
}

// programsOf returns the names of the programs that the hooks need. For atFunctions, create adds those of copies.
func programsOf(hooks hooks) []string {
	switch hooks {
	case atCalls:
		return []string{waitsProgEnded, waitsProgEntered, waitsProgLeft}
	case atFunctions:
		return []string{waitsProgEnded}
	case atSwitches:
	}
	return []string{waitsProgEnded, waitsProgSwitched}
}

// create loads the programs for the hooks, and the BPF maps.
func (p *programs) create(spec *ebpf.CollectionSpec, hooks hooks, uring bool) error {
	keep := programsOf(hooks)
	if hooks == atFunctions {
		// Many kernels refuse all trampolines. Trying a small program finds this out sooner.
		if err := bpf.Trampolines(callPrefix + "read"); err != nil {
			return err
		}
		names, err := copies(spec, uring)
		if err != nil {
			return err
		}
		keep = append(keep, names...)
	}
	c, err := bpf.NewCollection(spec, keep...)
	if err != nil {
		return err
	}
	p.kernel = c
	for _, name := range keep {
		p.extra = append(p.extra, c.Programs[name])
	}
	p.names = keep
	return nil
}

// copies adds to spec a copy of the programs for each system call that is timed, and returns the names of the copies.
func copies(spec *ebpf.CollectionSpec, uring bool) (names []string, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	calls, read := waitCalls()
	send := sendCall()
	calls = slices.Insert(calls, 0, send)
	for i := range calls {
		if calls[i].name == uringEnter && !uring {
			continue
		}
		place, err := calls[i].place(kernel)
		if err != nil {
			return nil, err
		}
		programs := []string{waitsProgCallEntered, waitsProgCallLeft}
		switch calls[i].number {
		case read:
			programs[0] = waitsProgReadEntered
		case send.number:
			programs = []string{waitsProgSendEntered}
		}
		for _, program := range programs {
			name := program + "_" + place
			if _, has := spec.Programs[name]; place == "" || has {
				continue
			}
			one := spec.Programs[program].Copy()
			one.AttachTo, one.Name = place, program
			spec.Programs[name] = one
			names = append(names, name)
		}
	}
	return names, nil
}

// place returns the kernel function at which a system call is timed; empty for a rare call that cannot be timed.
//
// The type information (BTF) of some kernels describes the function of a call twice, the second time for kernels that are
// built without the call. No program can be attached to a function with two descriptions or none. Then place returns the
// function that does the work of the call (inner). This is the second choice, because other parts of the kernel may call
// that function, too.
func (c *call) place(kernel *btf.Spec) (string, error) {
	var f *btf.Func
	name := callPrefix + c.name
	switch {
	case kernel.TypeByName(name, &f) == nil:
		return name, nil
	case c.inner != "" && kernel.TypeByName(c.inner, &f) == nil:
		return c.inner, nil
	case c.rare:
		return "", nil
	}
	return "", fmt.Errorf("%w: the kernel describes %s twice or not at all", errPrograms, name)
}

// open maps the slots into this process's memory, and opens the rings.
func (p *programs) open(procs int) (err error) {
	size := procs * int(unsafe.Sizeof(slot{}))
	p.memory, err = unix.Mmap(p.kernel.Maps[waitsMapSlots].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the table of wait events: %w", err)
	}
	p.slots = unsafe.Slice((*slot)(unsafe.Pointer(unsafe.SliceData(p.memory))), procs)
	if p.gone, err = ringbuf.NewReader(p.kernel.Maps[waitsMapGone]); err != nil {
		return fmt.Errorf("open the ring of ended processes: %w", err)
	}
	if p.trace, err = ringbuf.NewReader(p.kernel.Maps[waitsMapTrace]); err != nil {
		return fmt.Errorf("open the ring of traced waits: %w", err)
	}
	if p.stacks, err = ringbuf.NewReader(p.kernel.Maps[waitsMapStacks]); err != nil {
		return fmt.Errorf("open the ring of stacks: %w", err)
	}
	return nil
}

// Attach attaches the programs. From then on, the kernel calls them.
func (p *programs) Attach() error {
	if err := p.countFromNow(); err != nil {
		return err
	}
	for i, program := range p.extra {
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return refusal(fmt.Errorf("attach %s: %w", p.names[i], err))
		}
		p.links = append(p.links, l)
	}
	return nil
}

// Close detaches the programs, and frees all resources. If this process ends without calling Close, the kernel does so itself.
func (p *programs) Close() {
	p.detach()
	for _, one := range p.probes {
		_ = one.link.Close()
	}
	_ = p.executor.Close() // nil has nothing to close
	if p.gone != nil {
		_ = p.gone.Close()
	}
	if p.trace != nil {
		_ = p.trace.Close()
	}
	if p.stacks != nil {
		_ = p.stacks.Close()
	}
	if p.kernel != nil {
		p.kernel.Close()
	}
	if p.memory != nil {
		_ = unix.Munmap(p.memory)
		p.memory, p.slots = nil, nil
	}
}

// detach detaches the programs. The kernel no longer calls them.
func (p *programs) detach() {
	for _, l := range p.links {
		_ = l.Close()
	}
	p.links = nil
}

// refusal wraps an error of the kernel with errPrograms, or returns an fs.ErrPermission.
func refusal(err error) error {
	switch {
	case errors.Is(err, errPrograms):
		return err
	case errors.Is(err, fs.ErrPermission):
		return loader().Error("load a program", err)
	case bpf.MissingTypes() != nil:
		return fmt.Errorf("%w: %w", errPrograms, bpf.MissingTypes())
	}
	return fmt.Errorf("%w (Linux %s): %w", errPrograms, bpf.Release(), err)
}

// Slots returns the number of slots, one for each PGPROC.
func (p *programs) Slots() int { return len(p.slots) }

// Read copies slot i while no BPF program writes to it. It returns false if this fails in a hundred tries.
//
// Read must read the slot's sequence number again after the copy. On arm64, an atomic load can run before earlier loads are
// done, but the store of an atomic addition cannot. So Read adds 0.
func (p *programs) Read(i int, into *slot) bool {
	s := &p.slots[i]
	for range 100 {
		before := atomic.LoadUint32(&s.Sequence)
		if before&1 == 0 {
			*into = *s
			if atomic.AddUint32(&s.Sequence, 0) == before {
				return true
			}
		}
		runtime.Gosched()
	}
	return false
}

// holds reports whether the figures of a slot are valid: Reset was not called after the programs last wrote them.
func holds(s *slot) bool { return s.Generation == s.WantedGeneration }

// Reset requests that the programs clear slot i before they write to it again. Until they have done so, holds returns false.
func (p *programs) Reset(i int, now uint64) {
	atomic.StoreUint64(&p.slots[i].ResetAt, now)
	atomic.AddUint32(&p.slots[i].WantedGeneration, 1)
}

// SetTraced sets whether the programs report every wait of the process in slot i.
func (p *programs) SetTraced(i int, on bool) {
	var value uint32
	if on {
		value = 1
	}
	atomic.StoreUint32(&p.slots[i].Traced, value)
}

// Seed records, before Attach, that a process has been waiting for an event since the given time of CLOCK_MONOTONIC.
func (p *programs) Seed(i, pid int, event uint32, since uint64) error {
	s := &p.slots[i]
	s.Index, s.Pid, s.Waiting, s.Since = uint32(i), uint32(pid), event, since
	s.Life++
	index := uint16(i + 1)
	if err := p.kernel.Maps[waitsMapSlotOfPid].Put(uint32(pid), index); err != nil {
		return fmt.Errorf("note process %d: %w", pid, err)
	}
	return nil
}

// Unseed removes, after Attach, what Seed recorded about a wait that ended before Attach. since is the time that Seed got.
func (p *programs) Unseed(i int, since uint64) {
	atomic.CompareAndSwapUint64(&p.slots[i].Since, since, 0)
}

// Gone waits until the next process has ended, and reads its figures; false at the deadline, after Close, or for an invalid
// record.
func (p *programs) Gone(deadline time.Time, into *slot) bool {
	p.gone.SetDeadline(deadline)
	record, err := p.gone.Read()
	if err != nil || len(record.RawSample) < int(unsafe.Sizeof(*into)) {
		return false
	}
	*into = *(*slot)(unsafe.Pointer(unsafe.SliceData(record.RawSample)))
	return true
}

// try loads the programs for no server, to find out whether the kernel accepts them. For atFunctions, it also attaches one of
// them for a moment. The parameter uring has the meaning of config.Uring.
func try(hooks hooks, uring bool) error {
	p, err := loadPrograms(config{Postmaster: -1, ProcSize: 1, Procs: 1, Uring: uring}, hooks)
	if err != nil {
		return err
	}
	defer p.Close()
	if hooks == atFunctions { // some kernels load these programs and cannot attach them, such as Linux 6.1 on aarch64
		l, err := link.AttachTracing(link.TracingOptions{Program: p.extra[len(p.extra)-1]})
		if err != nil {
			return refusal(fmt.Errorf("attach: %w", err))
		}
		_ = l.Close()
	}
	return nil
}
