package clusterbpf

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/bpf"
)

// ErrUnsupported means that this kernel or architecture, or the environment of this process, lacks what a Sampler
// needs.
var ErrUnsupported = errors.New("the processes of a server cannot be sampled here")

// MaxStack is the largest number of bytes of one stack. cluster.bpf.c has the same value.
const MaxStack = 128 << 10

// Server describes the server to sample. Addresses are those in a child of the postmaster.
type Server struct {
	// Postmaster is the process id of the postmaster.
	Postmaster int
	// WaitPointer, Status and Port are the addresses of my_wait_event_info, MyBEEntry and MyProcPort. If Port is 0,
	// samples have no names of databases and users.
	WaitPointer, Status, Port uint64
	// Context is the address of error_context_stack; 0: samples have no functions of PL/pgSQL. Statement is the offset
	// of err_stmt in PLpgSQL_execstate, Signature the offset of fn_signature in PLpgSQL_function.
	Context              uint64
	Statement, Signature int
	// TypeVariable is the address of MyBackendType, for processes without an entry in pg_stat_activity; 0: unknown.
	TypeVariable uint64
	// Worker is the address of MyBgworkerEntry, WorkerKind the offset of bgw_type in the entry, and WorkerType the
	// value of st_backendType for background workers. If Worker is 0, samples have no Record.WorkerType.
	Worker                 uint64
	WorkerKind, WorkerType int
	// Type, Database, User, State, Name and QueryID are offsets in PgBackendStatus: st_backendType, st_databaseid,
	// st_userid, st_state, st_appname and st_query_id.
	Type, Database, User, State, Name, QueryID int
	// PortDatabase and PortUser are offsets in Port: database_name and user_name.
	PortDatabase, PortUser int
}

// Options say which samples to take.
type Options struct {
	// Clock samples the running processes, once in a Period on each processor.
	Clock  bool
	Period time.Duration
	// Switches follows context switches. At most one stack of a process is taken in StackPeriod, and on one processor
	// at most one in StackSpacing.
	Switches                  bool
	StackPeriod, StackSpacing time.Duration
	// Chosen are the processes to sample: the start time of each, as in process.Stat, by process id. The postmaster can
	// be one of them. Nil means all processes of the server except the postmaster.
	Chosen map[int]uint64
	// Processes is the largest number of processes that the server can have.
	Processes int
	// RingSize is the size, in bytes, of the ring that keeps records until Read reads them: a power of 2.
	RingSize int
	// RedZone is the number of bytes below the stack pointer that belong to the stack.
	RedZone int
}

// Sampler has the loaded BPF programs. Only one goroutine may use it at a time.
type Sampler struct {
	options    Options
	kernel     *ebpf.Collection // programs and tables
	reader     *ringbuf.Reader
	record     ringbuf.Record
	processors []int
	events     []int // descriptors of perf events
	links      []link.Link
	unseen     int    // number of processors on which Start could not start a clock
	attached   uint64 // time of Start, of CLOCK_MONOTONIC in ns
}

// Load loads the programs. The error is ErrUnsupported, or fs.ErrPermission if a privilege is missing.
func Load(s Server, o Options) (*Sampler, error) {
	processors, err := online()
	if err != nil {
		return nil, err
	}
	p := &Sampler{options: o, processors: processors}
	if p.kernel, err = load(&s, &o, processors[len(processors)-1]+1); err != nil {
		return nil, err
	}
	for pid, start := range o.Chosen {
		if err := p.kernel.Maps["chosen"].Put(uint32(pid), start); err != nil {
			p.Close()
			return nil, loader().Error("fill a table", err)
		}
	}
	if p.reader, err = ringbuf.NewReader(p.kernel.Maps["ring"]); err != nil {
		p.Close()
		return nil, loader().Error("open a ring", err)
	}
	return p, nil
}

// load loads the programs. The parameter processors is one more than the highest number of a processor.
func load(s *Server, o *Options, processors int) (*ebpf.Collection, error) {
	spec, err := loader().Spec(map[string]any{
		"postmaster": uint32(s.Postmaster), "wait_pointer": s.WaitPointer, "status_pointer": s.Status,
		"worker_pointer": s.Worker, "worker_type": uint32(s.WorkerType), "worker_offset": uint32(s.WorkerKind),
		"type_variable": s.TypeVariable, "port_pointer": s.Port, "type_offset": uint32(s.Type),
		"database_offset": uint32(s.Database),
		"user_offset":     uint32(s.User), "state_offset": uint32(s.State), "name_offset": uint32(s.Name),
		"query_offset": uint32(s.QueryID), "port_database": uint32(s.PortDatabase), "port_user": uint32(s.PortUser),
		"context_pointer": s.Context, "statement_offset": uint32(s.Statement), "signature_offset": uint32(s.Signature),
		"red_zone": uint32(o.RedZone), "processors": uint32(processors), "only_chosen": o.Chosen != nil,
		"stack_period": uint64(o.StackPeriod), "stack_spacing": uint64(o.StackSpacing),
	})
	if err != nil {
		return nil, err
	}
	const most = 1 << 18 // PostgreSQL's limit of processes
	spec.Maps["ring"].MaxEntries = uint32(o.RingSize)
	spec.Maps["chosen"].MaxEntries = uint32(max(len(o.Chosen), 1))
	spec.Maps["scratch"].MaxEntries = uint32(processors) + 1
	spec.Maps["processes"].MaxEntries = uint32(min(max(o.Processes, 1), most))
	programs := []string{"read_sleeper"}
	if o.Clock {
		programs = append(programs, "on_clock")
	}
	if o.Switches {
		programs = append(programs, "on_switch", "on_exit", "note_delay")
	}
	return loader().Load(spec, programs...)
}

// loader returns the loader of the programs. It names Linux 6.10 as the first release: older kernels refuse read_sleeper.
func loader() *bpf.Loader {
	return &bpf.Loader{Read: loadCluster, Unsupported: ErrUnsupported, Release: "6.10", HostPIDs: true}
}

// Check returns why processes cannot be sampled here; nil if they can.
func Check() error {
	s, err := Load(Server{Postmaster: -1}, Options{
		Clock: true, Switches: true, Period: time.Second, RingSize: os.Getpagesize(), Processes: 1,
	})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Start(0)
}

// Start attaches the programs. They stop sampling after the duration most, even if this process cannot run at that time and
// call Stop.
func (s *Sampler) Start(most time.Duration) error {
	s.attached = Now()
	if err := s.kernel.Variables["attached"].Set(s.attached); err != nil {
		return loader().Error("set a variable", err)
	}
	if err := s.kernel.Variables["until"].Set(s.attached + uint64(most)); err != nil {
		return loader().Error("set a variable", err)
	}
	for _, program := range []*ebpf.Program{s.kernel.Programs["on_exit"], s.kernel.Programs["on_switch"]} {
		if program == nil {
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return loader().Error("attach a program", err)
		}
		s.links = append(s.links, l)
	}
	if !s.options.Clock {
		return nil
	}
	var last error
	for _, number := range s.processors {
		if err := s.startClock(number); err != nil {
			s.unseen++
			last = err
		}
	}
	if s.unseen == len(s.processors) {
		return loader().Error("open a clock of a processor", last)
	}
	return nil
}

// startClock opens a perf event by which the kernel runs on_clock on a processor, once in a Period.
func (s *Sampler) startClock(processor int) error {
	attributes := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: unix.PERF_ATTR_SIZE_VER5,
		Sample: uint64(s.options.Period), Bits: unix.PerfBitDisabled,
	}
	fd, err := unix.PerfEventOpen(&attributes, -1, processor, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("processor %d: %w", processor, err)
	}
	s.events = append(s.events, fd)
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, s.kernel.Programs["on_clock"].FD()); err != nil {
		return fmt.Errorf("processor %d: %w", processor, err)
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return fmt.Errorf("processor %d: %w", processor, err)
	}
	return nil
}

// Stop detaches the programs. Their records can still be read. When this process ends, the kernel detaches them itself.
func (s *Sampler) Stop() {
	for _, l := range s.links {
		_ = l.Close()
	}
	for _, fd := range s.events {
		_ = unix.Close(fd)
	}
	s.links, s.events = nil, nil
}

// Unseen returns the number of processors whose running processes are not sampled, because no clock could be started there.
func (s *Sampler) Unseen() int { return s.unseen }

// Close detaches the programs and frees all resources.
func (s *Sampler) Close() {
	s.Stop()
	if s.reader != nil {
		_ = s.reader.Close()
	}
	if s.kernel != nil {
		s.kernel.Close()
	}
}

// Now is CLOCK_MONOTONIC, the clock of the programs, in ns.
func Now() uint64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}
