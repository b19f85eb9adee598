package clusterbpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
)

// Kind says what a Record reports.
type Kind uint32

// The kinds.
const (
	Running Kind = 1 + iota // a stack of a running process, which a clock interrupted
	Off                     // a stack of a process that is leaving its processor
	Sleeper                 // a stack of a process that ReadSleeper has found asleep
	OffEnd                  // the end of a wait whose stack was reported by Off or Sleeper
	Exit                    // a process ends
)

// Flags of a record.
const (
	HasEntry   = 1  // the process has an entry in the memory of pg_stat_activity
	Consistent = 2  // the process was not changing its entry at the time
	NoStack    = 4  // the stack could not be read
	CutStack   = 8  // not all of the stack was readable, or the stack is longer than the copy
	Runnable   = 16 // the process left the processor without going to sleep
	HasPort    = 32 // the process has a connection
)

// numRegisters is the number of words of struct pt_regs.
const numRegisters = 21

// Record is one report of a BPF program. It is valid until the next record is read.
type Record struct {
	Kind Kind
	// PID is the process id, Started the start time in ns since boot. Together they identify the process.
	PID     int
	Started uint64
	// At is the time of the report, of CLOCK_MONOTONIC in ns.
	At uint64
	// Number is the number of the wait, counted from the first wait of the process that the programs saw.
	Number uint64
	// Waits is set in records of the kind Off. It is the number of the process's waits since its previous stack, this wait
	// included.
	Waits uint64
	// In records of the kind OffEnd, Took is the length of the wait, and Delay the part of it in which the process
	// waited for a processor. In records of the kind Exit, Took is the time on the processor, and the field Off the
	// time off it.
	Took, Delay, Off time.Duration

	// The other fields are only set for records with a stack: Running, Off and Sleeper.
	Flags                                     uint32
	Event, BackendType, Database, User, State uint32
	QueryID                                   uint64
	ApplicationName, DatabaseName, UserName   []byte
	WorkerType                                []byte               // the type of a background worker (bgw_type)
	Registers                                 [numRegisters]uint64 // struct pt_regs
	StackStart                                uint64
	Stack                                     []byte

	// Context is the value of error_context_stack.
	Context uint64
	// Pieces are further memory of the process, to which some entries of error_context_stack point.
	Pieces []Piece
}

// Piece is a copy of memory of the process, which begins at the address Start.
type Piece struct {
	Start uint64
	Data  []byte
}

// Read calls the callback each with all records in the ring, until the ring is empty or the time until has come. It
// returns the number of records.
func (s *Sampler) Read(until time.Time, each func(*Record)) (int, error) {
	s.reader.SetDeadline(time.Unix(1, 0))
	var r Record
	for n := 0; ; n++ {
		err := s.reader.ReadInto(&s.record)
		if err != nil {
			return n, nil //nolint:nilerr // the deadline: there is no more
		}
		if err := r.parse(s.record.RawSample); err != nil {
			return n, err
		}
		each(&r)
		if n%64 == 63 && time.Now().After(until) {
			return n + 1, nil
		}
	}
}

// parse decodes a record that a BPF program has written.
func (r *Record) parse(p []byte) error {
	const headSize, recordSize = int(unsafe.Sizeof(clusterHead{})), int(unsafe.Sizeof(clusterRecord{}))
	if len(p) < headSize {
		return fmt.Errorf("record of %d bytes", len(p))
	}
	var c clusterRecord
	view := unsafe.Slice((*byte)(unsafe.Pointer(&c)), recordSize)
	copy(view, p[:min(len(p), recordSize)])
	*r = Record{
		Kind: Kind(c.Head.Kind), PID: int(c.Head.Pid), Started: c.Head.Started, At: c.Head.At, Number: c.Head.Number,
		Waits: c.Head.First,
	}
	switch r.Kind {
	case OffEnd:
		r.Took, r.Delay = time.Duration(c.Head.First), time.Duration(c.Head.Second)
		return nil
	case Exit:
		r.Took, r.Off = time.Duration(c.Head.First), time.Duration(c.Head.Second)
		return nil
	case Running, Off, Sleeper:
	}
	if len(p) < recordSize || uint64(len(p)-recordSize) < c.StackLength {
		return fmt.Errorf("record of %d bytes", len(p))
	}
	l := &c.Labels
	r.Flags, r.Event, r.BackendType, r.Database, r.User = l.Flags, l.Event, l.Type, l.Database, l.User
	r.State, r.QueryID = l.State, l.Query
	r.WorkerType = text(l.Worker[:])
	r.ApplicationName, r.DatabaseName, r.UserName = text(l.Name[:]), text(l.DatabaseName[:]), text(l.UserName[:])
	r.Registers, r.StackStart = c.Registers, c.StackStart
	r.Stack = p[recordSize:][:c.StackLength:c.StackLength]
	r.Context = c.Context
	for i := range c.Levels[:min(int(c.NumLevels), len(c.Levels))] {
		l := &c.Levels[i]
		r.Pieces = append(r.Pieces, Piece{l.FunctionAt, bytes.Clone(l.Function[:])},
			Piece{l.SignatureAt, bytes.Clone(l.Signature[:])})
		if l.StatementAt != 0 {
			r.Pieces = append(r.Pieces, Piece{l.StatementAt, bytes.Clone(l.Statement[:])})
		}
	}
	return nil
}

// text returns the bytes before the first zero.
func text(p []byte) []byte {
	if i := bytes.IndexByte(p, 0); i >= 0 {
		p = p[:i]
	}
	return bytes.Clone(p)
}

// AppendRegisters appends the registers to p, in the layout of NT_PRSTATUS.
func (r *Record) AppendRegisters(p []byte) []byte {
	const prStatusSize = 27 * 8 // struct user_regs_struct: the segment registers follow, and are 0
	for _, value := range r.Registers {
		p = binary.NativeEndian.AppendUint64(p, value)
	}
	return append(p, make([]byte, prStatusSize-8*numRegisters)...)
}

// Process describes a live process and its waits. A wait is the time between two times on a processor.
type Process struct {
	PID     int
	Started uint64 // ns since boot; 0: it has not got or left a processor since Sampler.Start
	On, Off time.Duration
	// Running is set while the process has a processor. Since is when it got that processor, or left its last one, in ns of
	// CLOCK_MONOTONIC.
	Running bool
	Since   uint64
	// Number is the number of the present or the last wait. HasStack is set if a stack of that wait was taken.
	Number   uint64
	HasStack bool
	// QueryID, Event, State and Runnable describe the present or the last wait. Runnable is set if the process did not
	// sleep, but lost its processor.
	QueryID      uint64
	Event, State uint32
	Runnable     bool
	// Last has the time of the process's last waits with the same statement, wait event and state. TakeWaits does not
	// return it yet.
	Last WaitTime
	// Undivided is set while the process has a processor and its previous wait is not yet in Last and Off.
	// UndividedTook is the length of that wait. UndividedDelay is the part of it in which the process waited for a
	// processor; only End sets it.
	Undivided                     bool
	UndividedTook, UndividedDelay time.Duration
	// Delay is the part of the time since Since in which the process waited for a processor; only End sets it.
	Delay time.Duration

	delay, notedDelay, notedQueued, clock uint64 // the fields of struct process in cluster.bpf.c
	noted                                 bool
}

// Seed adds a process that lived before Start. Call it after Start. It has no effect if the process has got or left a
// processor since Start. Event, State and QueryID of p describe the process's wait in progress.
func (s *Sampler) Seed(p Process) error {
	value := clusterProcess{Since: s.attached, Event: p.Event, State: p.State, Query: p.QueryID, Number: 1}
	if p.Running {
		value.Running = 1
	}
	if p.Runnable {
		value.Runnable = 1
	}
	err := s.kernel.Maps["processes"].Update(uint32(p.PID), &value, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("note process %d: %w", p.PID, err)
	}
	return nil
}

// Processes returns all live processes of which the programs have seen a context switch, or that Seed added.
func (s *Sampler) Processes() ([]Process, error) {
	var list []Process
	err := batches(s.kernel.Maps["processes"].BatchLookup, func(pid uint32, p *clusterProcess) {
		list = append(list, Process{
			PID: int(pid), Started: p.Started, On: time.Duration(p.On), Off: time.Duration(p.Off), Running: p.Running != 0,
			Since: p.Since, Number: p.Number, HasStack: p.Number == p.Stack, QueryID: p.Query, Event: p.Event,
			State: p.State, Runnable: p.Runnable != 0,
			Last: WaitTime{
				PID: int(pid), Started: p.Started, QueryID: p.SameQuery, Event: p.SameEvent, State: p.SameState,
				Took: time.Duration(p.SameNs), Delay: time.Duration(p.SameDelay), Waits: p.SameWaits,
			},
			Undivided: p.Undivided != 0, UndividedTook: time.Duration(p.UndividedNs),
			delay: p.Delay, noted: p.Noted != 0, notedDelay: p.NotedDelay, notedQueued: p.NotedQueued, clock: p.Clock,
		})
	})
	return list, err
}

// End returns all live processes, with their delays until the time at. Call it after Stop. counted is false if this kernel
// does not measure how long processes wait for a processor. Then the delays contain only the waits of processes that lost
// their processor without going to sleep.
func (s *Sampler) End(at uint64) (list []Process, counted bool, err error) {
	list, err = s.Processes()
	if err != nil {
		return nil, false, err
	}
	counted = true
	for i := range list {
		result, err := s.kernel.Programs["note_delay"].Run(&ebpf.RunOptions{Context: uint32(list[i].PID)})
		if err != nil {
			return nil, false, fmt.Errorf("read the delay of process %d: %w", list[i].PID, err)
		}
		counted = counted && result != notCounted
	}
	if list, err = s.Processes(); err != nil {
		return nil, false, err
	}
	var clock uint64 // for processes that have not run since Start, which have no clock of their own
	for i := range list {
		clock = max(clock, list[i].clock)
	}
	for i := range list {
		list[i].divide(at, clock)
	}
	return list, counted, nil
}

// notCounted is NOT_COUNTED of cluster.bpf.c.
const notCounted = 1

// divide computes the delays of the process's last two waits until the time at. clock is the difference between
// CLOCK_MONOTONIC and the scheduler's clock, for a process whose field clock is 0.
func (p *Process) divide(at, clock uint64) {
	var before time.Duration // length of ended waits for a processor that are not yet in a delay
	if p.noted && p.Started != 0 {
		before = time.Duration(p.notedDelay - p.delay)
	}
	if p.Undivided {
		p.UndividedDelay, before = min(before, p.UndividedTook), 0
		if p.Runnable {
			p.UndividedDelay = p.UndividedTook
		}
	}
	took := time.Duration(max(at, p.Since) - p.Since)
	if p.clock != 0 {
		clock = p.clock
	}
	since := p.notedQueued + clock // the process waits for a processor since then
	switch {
	case p.Runnable && !p.Running:
		p.Delay = took
	case p.notedQueued != 0 && clock != 0 && since < at:
		p.Delay = min(took, time.Duration(at-since)+before)
	case !p.Running:
		p.Delay = min(took, before)
	}
}

// WaitTime is the total time (Took) that a process was off the processor with the same statement, wait event and state.
// Delay is the part of Took in which the process waited for a processor. Waits is the number of waits.
type WaitTime struct {
	PID          int
	Started      uint64
	QueryID      uint64
	Event, State uint32
	Took, Delay  time.Duration
	Waits        uint64
}

// TakeWaits returns the times of the waits that have ended since the previous TakeWaits, except for Process.Last.
func (s *Sampler) TakeWaits() ([]WaitTime, error) {
	var list []WaitTime
	err := batches(s.kernel.Maps["wait_times"].BatchLookupAndDelete, func(k clusterWaitKey, t *clusterWaitTime) {
		list = append(list, WaitTime{
			PID: int(k.Pid), Started: k.Started, QueryID: k.Query, Event: k.Event, State: k.State,
			Took: time.Duration(t.Ns), Delay: time.Duration(t.Delay), Waits: t.Waits,
		})
	})
	return list, err
}

// batchCall is a method of a BPF map that reads many elements at a time.
type batchCall func(*ebpf.MapBatchCursor, any, any, *ebpf.BatchOptions) (int, error)

// batches reads all elements of a BPF map by the method call, and calls the callback each for every element.
func batches[K, V any](call batchCall, each func(K, *V)) error {
	const size = 1024
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := call(&cursor, keys, values, nil)
		for i := range n {
			each(keys[i], &values[i])
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("read a table of the kernel's: %w", err)
		}
	}
}

// ReadSleeper copies the stack of a sleeping process without waking it. If the process sleeps during the whole copy, Read
// returns the stack as a Record of the kind Sleeper.
func (s *Sampler) ReadSleeper(pid int) error {
	_, err := s.kernel.Programs["read_sleeper"].Run(&ebpf.RunOptions{Context: uint32(pid)})
	if err != nil {
		return fmt.Errorf("read process %d: %w", pid, err)
	}
	return nil
}

// Counters are the counters of the BPF programs.
type Counters struct {
	// Lost is the number of records that are missing because the ring had no room, or because the registers could not be
	// read. Uncounted is the number of waits and processes for which a BPF map had no room.
	Lost, Uncounted uint64
	// Runs is how often the BPF programs ran for processes of the server, and Time the total time of these runs.
	Runs uint64
	Time time.Duration
}

// Counters returns the counters since Load.
func (s *Sampler) Counters() (Counters, error) {
	var sums [4]uint64
	for i := range sums {
		var each []uint64
		if err := s.kernel.Maps["counters"].Lookup(uint32(i), &each); err != nil {
			return Counters{}, fmt.Errorf("read a counter of the kernel's: %w", err)
		}
		for _, n := range each {
			sums[i] += n
		}
	}
	return Counters{Lost: sums[0], Uncounted: sums[1], Runs: sums[2], Time: time.Duration(sums[3])}, nil
}
