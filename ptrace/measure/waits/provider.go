package waits

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"pg_stat_backtrace/ptrace/snapshot"
)

// Buckets is the number of ranges of an event's histogram. The first range is for less than 1024 ns. Each other range
// ends at twice its beginning, except the last, which has no end.
const Buckets = 32

// Bucket returns the index of the range to which a duration belongs.
func Bucket(d time.Duration) int {
	return min(bits.Len64(uint64(max(d, 0))>>10), Buckets-1)
}

// BucketLimits returns the shortest duration of range i (from) and of the next range (to); to is 0 for the last range.
func BucketLimits(i int) (from, to time.Duration) {
	if i > 0 {
		from = 1 << (9 + i)
	}
	if i < Buckets-1 {
		to = 1 << (10 + i)
	}
	return from, to
}

// Method says which waits are seen, and how.
type Method string

// The methods.
const (
	// Auto stands for the best method that this host allows without a high cost.
	Auto Method = "auto"
	// Exact sees every wait in which the process makes a system call.
	Exact Method = "exact"
	// Blocked sees every wait in which a process leaves its processor.
	Blocked Method = "blocked"
	// Sampled estimates the total time of the waits. It does not count them.
	Sampled Method = "sampled"
)

// Info describes a provider.
type Info struct {
	Method Method
	// Mechanism is the name of the facility: fentry, tracepoints, sched_switch or polling.
	Mechanism string
	// Counts says whether the provider has the number of waits, the longest wait and the histogram of each event. Otherwise
	// it has only an estimate of the total time.
	Counts bool
	// Queries says whether waits are attributed to queries.
	Queries bool
	// Reasons has the reasons why better mechanisms are not used.
	Reasons []string
	// Unreachable are the processes whose memory could not be read in time when the provider was opened: see
	// process.ErrUnreachable. The waits in which they were at that time are missing.
	Unreachable []int
}

// Event has the figures of one wait event.
type Event struct {
	// ID is the server's number of the event (wait_event_info).
	ID      uint32
	Calls   uint64
	Total   time.Duration
	Longest time.Duration
	Buckets [Buckets]uint64
}

// add adds the figures of another event.
func (e *Event) add(other *Event) {
	e.Calls += other.Calls
	e.Total += other.Total
	e.Longest = max(e.Longest, other.Longest)
	for i, n := range other.Buckets {
		e.Buckets[i] += n
	}
}

// addWait adds one wait.
func (e *Event) addWait(took time.Duration) {
	e.Calls++
	e.Total += took
	e.Longest = max(e.Longest, took)
	e.Buckets[Bucket(took)]++
}

// Process has the figures of a process.
type Process struct {
	// PID is the process id in this process's PID namespace, Slot the index of its PGPROC.
	PID, Slot int
	// Events includes the wait in progress.
	Events []Event
	// InProgress is the wait in progress; Calls is 0 if there is none. Methods without Info.Counts do not set it.
	InProgress Event
	// Overflow is the number of waits that are missing because the process waited for more different events than its
	// slot has room for.
	Overflow uint64
	// Resets is how often the figures of the process were reset.
	Resets uint64
	// Ended says that the process has ended; see Options.Keep.
	Ended bool
}

// Lost has the numbers of waits and processes that a snapshot lacks.
type Lost struct {
	// Processes is the number of ended processes whose figures were not read.
	Processes uint64
	// Overflow is the sum of Process.Overflow of all processes, live and ended.
	Overflow uint64
	// Missed is the number of events at which the kernel could not run a BPF program.
	Missed uint64
	// Outside is the number of waits of processes that had no PGPROC in the shared memory yet, or no more.
	Outside uint64
	// Queries is the number of waits that are not attributed to a query because there was no room. Records is the
	// number of missing records of traced processes.
	Queries, Records uint64
	// Stacks is the number of stacks of waits that could not be copied.
	Stacks uint64
}

// Snapshot has the figures of the waits from Since to At.
type Snapshot struct {
	// At is when the snapshot was taken. Waits in progress at that time are included.
	At time.Time
	// Since is when the provider was opened, or when ResetAll was last called.
	Since     time.Time
	Processes []Process
	// Ended are the figures of all processes that have ended and are not in Processes.
	Ended []Event
	Lost  Lost
}

// wait adds the wait in progress to the process and to the table figures. began is the start of the wait, in ns of
// CLOCK_MONOTONIC.
func (p *Process) wait(figures table, event uint32, began uint64) {
	took := monotonic() - began
	if int64(took) <= 0 {
		return
	}
	p.InProgress = Event{ID: event}
	p.InProgress.addWait(time.Duration(took))
	figures.at(event).add(&p.InProgress)
}

// InProgress adds up the waits in progress of all processes, by event.
func (s *Snapshot) InProgress() []Event {
	sums := make(table)
	for i := range s.Processes {
		if e := &s.Processes[i].InProgress; e.Calls > 0 {
			sums.at(e.ID).add(e)
		}
	}
	return sums.list()
}

// Totals adds up the figures of all processes, by event.
func (s *Snapshot) Totals() []Event {
	sums := make(table)
	for i := range s.Processes {
		sums.addAll(s.Processes[i].Events)
	}
	sums.addAll(s.Ended)
	return sums.list()
}

// QueryFigures are the waits of all executions of a query for one event.
type QueryFigures struct {
	Query uint64
	// Event is 0 for the query itself: how often it ended, and how long it ran. The time before the provider was opened, or before
	// the last ResetAll, does not count.
	Event uint32
	Calls uint64
	Total time.Duration
}

// Cost is the cost of the timing for the server since the provider was opened.
type Cost struct {
	// Runs is how often BPF programs ran for the server, and Time an estimate of the total time of these runs.
	Runs uint64
	Time time.Duration
}

// Provider is a source of figures about wait events. Its methods may be called concurrently.
type Provider interface {
	Info() Info
	// Snapshot returns the figures. The error is ErrServerGone when the server has ended or restarted.
	Snapshot() (*Snapshot, error)
	// Check returns ErrServerGone when the server has ended or restarted.
	Check() error
	// Queries returns the figures by query; nothing if Info.Queries is false.
	Queries() ([]QueryFigures, error)
	// Reset sets the figures of a process to zero; false if the process is not known.
	Reset(pid int) bool
	// ResetAll sets all figures to zero.
	ResetAll() error
	// Cost returns the cost of the provider for the server so far.
	Cost() (Cost, error)
	// Close ends the timing and frees all resources.
	Close()
}

// Tracer is a provider that can report every wait of single processes.
type Tracer interface {
	// SetTraced sets whether every wait of a process is reported. It returns false if the process is not known.
	SetTraced(pid int, on bool) bool
	// SetExecutorTraced sets whether the starts and ends of a process's executor are reported. Setting it to false
	// works after the end of the process, too. Use it for single processes: each start and end costs the process a
	// microsecond.
	SetExecutorTraced(pid int, on bool) error
	// TraceAll sets whether every wait of all processes is reported.
	TraceAll(on bool) error
	// Records returns the records that were written since the previous call of Records.
	Records() []Record
}

// Stack is the stack of a process during a wait.
type Stack struct {
	PID      int
	Event    uint32
	Query    uint64 // 0 if there is none
	Took     time.Duration
	Snapshot *snapshot.Snapshot
}

// Stacker is a provider that copies stacks of waits: see Options.Stacks.
type Stacker interface {
	// Stacks returns the stacks that were copied since the previous call of Stacks. It leaves out stacks whose process has
	// ended or cannot be read any more; unnamed is their number.
	Stacks() (list []Stack, unnamed int)
}

// Kind says what a record reports.
type Kind uint8

// The kinds.
const (
	Wait Kind = iota
	QueryStart
	QueryEnd
	ExecutorStart
	ExecutorEnd
)

// Record is a wait, or the start or end of a query or of the executor, of a traced process.
type Record struct {
	PID  int
	Kind Kind
	// At is the start of a wait. For other kinds it is the moment of the start or end.
	At time.Time
	// Took is the duration of a wait, or of the query or the executor run that ended. For the executor, Tracer leaves
	// it 0: package waitevent computes it from the record of the start.
	Took time.Duration
	// Event is the number of a wait's event.
	Event uint32
	// Query is the query id, 0 if there is none.
	Query uint64
}

// ErrServerGone means that the server has ended, or has restarted after a crash. The provider has no more figures: for a
// restarted server, open a new one.
var ErrServerGone = errors.New("the server has ended or restarted")

// ErrUnsupported means that a method is impossible on this host or for this server.
var ErrUnsupported = errors.New("wait events cannot be timed")

// impossible is an error with the reason why a mechanism cannot work. It wraps ErrUnsupported. Its text is only the reason,
// because Open joins the reasons of several mechanisms in one message.
type impossible struct{ reason error }

func (i *impossible) Error() string { return i.reason.Error() }

// Unwrap returns both errors for errors.Is.
func (i *impossible) Unwrap() []error { return []error{ErrUnsupported, i.reason} }

// impossiblef makes an impossible error. Its arguments are those of fmt.Errorf.
func impossiblef(format string, args ...any) error { return &impossible{fmt.Errorf(format, args...)} }
