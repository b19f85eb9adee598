package clusterprofile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
)

// Mode says which time of a process counts.
type Mode string

// The modes.
const (
	// CPU samples processes while they have a processor.
	CPU Mode = "cpu"
	// OffCPU follows the context switches, and takes the stacks of processes that sleep or wait for a processor.
	OffCPU Mode = "offcpu"
	// Wall is both: all the time that the processes exist.
	Wall Mode = "wall"
)

// Modes returns the names of the modes, for help texts and completion.
func Modes() []string { return []string{string(CPU), string(OffCPU), string(Wall)} }

// Limits of Options.
const (
	// DefaultRate is the number of samples of each processor in a second. It is no divisor of the frequencies at which
	// programs and kernels usually work.
	DefaultRate = 99
	// MaxRate is the highest rate.
	MaxRate = 1000
	// DefaultDuration is the duration of a profile.
	DefaultDuration = 10 * time.Second
	// DefaultCostLimit is the share of all processors' time after which a profile ends by itself.
	DefaultCostLimit = 0.05
	// MaxDuration is the longest duration.
	MaxDuration = 24 * time.Hour
)

// ErrOptions is the error of Collect for invalid options. Its text names the option and the allowed values.
var ErrOptions = errors.New("invalid options")

// ErrNoSamples is the error of Collect if no process that passes the filter was sampled. The Summary is still returned.
var ErrNoSamples = errors.New("no samples")

// ErrServerGone is the error of Collect if the server ended before its processes could be sampled. If it ends or
// restarts during the profile, Collect returns the samples until then, and sets Summary.ServerEnded.
var ErrServerGone = errors.New("the server is not running")

// Filter selects processes and moments. An empty field selects everything. A sample must pass every field. A sample
// without the label that a field is about does not pass.
type Filter struct {
	// QueryIDs are query ids as in pg_stat_activity.query_id. A sample has one while its statement runs.
	QueryIDs []int64
	// Users and Databases are names, or decimal oids.
	Users, Databases []string
	// BackendTypes are as in pg_stat_activity.backend_type, such as "client backend".
	BackendTypes []string
	// PIDs are process ids as the server knows them.
	PIDs []int
}

// Options say what to sample. DataDir or Cluster is required. The zero value of every other field is the default.
type Options struct {
	// DataDir is the data directory of a running server on this host.
	DataDir string
	// Cluster is the server, if the caller has found it already. DataDir is not used then.
	Cluster *cluster.Cluster
	// Mode is CPU by default.
	Mode Mode
	// Rate is the number of samples of each processor in a second. With OffCPU and Wall it also is the number of stacks of
	// one process in a second. The default is DefaultRate.
	Rate float64
	// Duration bounds the sampling. The default is DefaultDuration. The end of ctx ends it earlier, without an error.
	Duration time.Duration
	// Processes are the processes of the server to sample, the postmaster too, by their ids on this host. The programs in
	// the kernel ignore all others. The profile ends when all of these have ended. Nil means all processes of the server,
	// without the postmaster.
	Processes []process.ID
	// Filter selects processes and moments.
	Filter Filter
	// MaxFrames bounds the frames of a stack, inlined calls included. 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Capturer names the stacks. A worker gives its own, which has read the server's files already. If it is nil, Collect
	// makes one.
	Capturer *capture.Capturer
	// Names returns the names of databases and users by oid, from a connection to the server. Collect calls it once, at
	// the end, and only if the processes themselves did not show all names. Nil, and an error, mean that the labels show
	// oids instead.
	Names func(ctx context.Context) (Names, error)
	// Texts adds the label LabelQuery, for readers with the right to see the statements of all users. The text of a query is of one
	// of its executions, with its constants.
	Texts bool
	// CostLimit ends the profile if the programs in the kernel take more than this share of all processors' time. The
	// default is DefaultCostLimit.
	CostLimit float64
	// Started is called when the sampling has begun. It must not wait.
	Started func()
	// Progress is called about once a second with the time since the start and the number of samples. It must not wait.
	Progress func(took time.Duration, samples int)
}

// Names are the names of databases and roles by oid.
type Names struct {
	Databases, Users map[uint32]string
}

// Summary says how complete a profile is. Counts are of all processes of the server, before the filter, except Samples
// and Time.
type Summary struct {
	// Mode, Rate and Took are how the samples were taken, and for how long.
	Mode Mode
	Rate float64
	Took time.Duration
	// Server names the server, as cluster.Cluster.String.
	Server string
	// Samples is the number of stacks in the profile.
	Samples int
	// Taken is the number of stacks that were taken. Labelled of them have all labels that the process had. Partial and
	// Unlabelled ones were taken while the process changed its entry in pg_stat_activity: partial ones have the constant
	// labels, from an earlier stack of the process. NoEntry ones are of processes that have no entry: they start or
	// end, or collect the log.
	Taken, Labelled, Partial, Unlabelled, NoEntry int
	// Lost counts samples that found no room, NoStack samples whose stack was not readable, and Uncounted waits and
	// processes that found no room.
	Lost, NoStack, Uncounted int
	// Processes is the number of processes that were seen, and Ended how many of them ended meanwhile.
	Processes, Ended int
	// CPU and OffCPU are the times of the processes. OffCPU is 0 in mode CPU. In modes OffCPU and Wall they are the
	// kernel's own, by its context switches. In mode CPU, CPU is an estimate: the samples times the period.
	CPU, OffCPU time.Duration
	// Time is the time of the profile, after the filter, and WithoutStack the part of it for which no stack was taken. The
	// profile shows that part as one frame.
	Time, WithoutStack time.Duration
	// KernelTime is an estimate of the processor time that the programs in the kernel took, a part of the server's time.
	KernelTime time.Duration
	// StoppedByCost is set if the profile ended early because of Options.CostLimit.
	StoppedByCost bool
	// StoppedBySize is set if the profile ended early because it has seen more processes than it can hold.
	StoppedBySize bool
	// WorkerCPU is the processor time that this process has used meanwhile.
	WorkerCPU time.Duration
	// UnseenProcessors is the number of processors of which no samples could be taken.
	UnseenProcessors int
	// The memory for a profile is bounded. Shortened counts stacks whose innermost address is the start of its function.
	// Joined counts stacks that are in one sample of their process and state. Cut counts stacks without the frames in
	// libraries that only their process has loaded.
	Shortened, Joined, Cut int
	// Generated counts stacks that end in code compiled at run time: see backtrace.Thread.
	Generated int
	// Unreachable is the number of processes whose memory could not be read in time: see process.ErrUnreachable. Some of
	// their labels and stacks are missing.
	Unreachable int
	// NoDelays is set if this kernel does not count how long processes wait for a processor. Then
	// the label off_cpu is "runnable" only for processes that lost their processor, and not after a wakeup.
	NoDelays bool
	// ProcessesEnded is set if the profile ended because all of Options.Processes had ended.
	ProcessesEnded bool
	// ServerEnded is set if the server ended or restarted meanwhile. The profile then ends at that moment.
	ServerEnded bool
}

// WithEntry is the number of stacks of processes with an entry in pg_stat_activity.
func (s *Summary) WithEntry() int { return s.Labelled + s.Partial + s.Unlabelled }

// LabelledShare is the share of the stacks of processes with an entry that have all labels, from 0 to 1.
func (s *Summary) LabelledShare() float64 {
	if s.WithEntry() == 0 {
		return 1
	}
	return float64(s.Labelled) / float64(s.WithEntry())
}

// Notes are remarks on what the profile lacks, one sentence each, for a reader of the profile.
func (s *Summary) Notes() []string {
	var notes []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	notes = append(notes, fmt.Sprintf("%.1f %% of %d stacks have all labels.", 100*s.LabelledShare(), s.WithEntry()))
	add(s.Partial, "%d stacks lack state, query and application_name: the process was changing them.", s.Partial)
	add(s.NoEntry, "%d stacks are of processes without an entry in pg_stat_activity.", s.NoEntry)
	add(s.Lost, "%d samples were lost for lack of room.", s.Lost)
	add(s.Uncounted, "%d waits or processes were not counted for lack of room.", s.Uncounted)
	add(s.NoStack, "The stacks of %d samples were not readable.", s.NoStack)
	add(s.UnseenProcessors, "%d processors were not sampled.", s.UnseenProcessors)
	add(s.Shortened, "%d stacks show the start of their innermost function, not the line: there were too many different "+
		"stacks.", s.Shortened)
	add(s.Joined, "%d stacks are not shown, only their time: there were too many different stacks.", s.Joined)
	add(s.Cut, "%d stacks lack frames: there were too many processes with libraries of their own.", s.Cut)
	if note := backtrace.GeneratedNote(s.Generated, s.Taken); note != "" {
		notes = append(notes, note+".")
	}
	add(s.Unreachable, "Labels or stacks of %d processes are missing: the kernel did not return from reading their "+
		"memory.", s.Unreachable)
	if s.NoDelays {
		notes = append(notes, "The label off_cpu=sleeping contains the time from the wakeup until the process got a "+
			"processor: this kernel does not count that time (CONFIG_SCHED_INFO).")
	}
	if s.StoppedByCost {
		notes = append(notes, "The profile ended early, because it cost too much.")
	}
	if s.StoppedBySize {
		notes = append(notes, fmt.Sprintf("The profile ended early, after %d processes.", s.Processes))
	}
	if s.ProcessesEnded {
		notes = append(notes, fmt.Sprintf("All processes had ended after %s.", s.Took.Round(time.Millisecond)))
	}
	if s.ServerEnded {
		notes = append(notes, "The server ended or restarted during the profile. Later samples are missing.")
	}
	if share := float64(s.WithoutStack) / float64(max(1, s.Time)); share >= 0.0005 { // else it would print as 0.0
		notes = append(notes, fmt.Sprintf("No stack was taken for %.1f %% of the time.", 100*share))
	}
	return notes
}

// withDefaults checks the options and sets defaults.
func (o Options) withDefaults() (Options, error) {
	if o.Mode == "" {
		o.Mode = CPU
	}
	if o.Rate == 0 {
		o.Rate = DefaultRate
	}
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if o.CostLimit == 0 {
		o.CostLimit = DefaultCostLimit
	}
	switch {
	case o.Cluster == nil && o.DataDir == "":
		return o, fmt.Errorf("%w: no data directory", ErrOptions)
	case !slices.Contains(Modes(), string(o.Mode)):
		return o, fmt.Errorf("%w: mode must be cpu, offcpu or wall, not %q", ErrOptions, string(o.Mode))
	case !(o.Rate >= 1 && o.Rate <= MaxRate): // not a number is neither
		return o, fmt.Errorf("%w: rate must be from 1 to %d, not %v", ErrOptions, MaxRate, o.Rate)
	case o.Duration < 0 || o.Duration > MaxDuration:
		return o, fmt.Errorf("%w: duration must be from 0 to %s, not %s", ErrOptions, MaxDuration, o.Duration)
	case o.MaxFrames < 0:
		return o, fmt.Errorf("%w: the number of frames must not be negative", ErrOptions)
	}
	return o, nil
}
