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
	"pg_stat_backtrace/worker/report/units"
)

// Mode selects the time of a process that the profile has.
type Mode string

// The modes.
const (
	// CPU samples processes while they have a processor.
	CPU Mode = "cpu"
	// OffCPU follows the context switches, and takes the stacks of processes that sleep or wait for a processor.
	OffCPU Mode = "offcpu"
	// Wall combines CPU and OffCPU: it has all the time of the processes.
	Wall Mode = "wall"
)

// Modes returns the names of the modes, for help texts and completion.
func Modes() []string { return []string{string(CPU), string(OffCPU), string(Wall)} }

// Limits of Options.
const (
	// DefaultRate is the default of Options.Rate. It is no divisor of the frequencies at which programs and kernels usually work.
	DefaultRate = 99
	// MaxRate is the highest rate.
	MaxRate = 1000
	// DefaultDuration is the default of Options.Duration.
	DefaultDuration = 10 * time.Second
	// DefaultCostLimit is the default of Options.CostLimit.
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

// Filter selects samples. An empty field selects all samples. A sample must match each field that is not empty. A sample without
// the label of such a field does not match.
type Filter struct {
	// QueryIDs are query ids as in pg_stat_activity.query_id. Only samples of running statements have a query id.
	QueryIDs []int64
	// Users and Databases are names, or decimal OIDs.
	Users, Databases []string
	// BackendTypes are as in pg_stat_activity.backend_type, such as "client backend".
	BackendTypes []string
	// PIDs are process ids that the server sees.
	PIDs []int
}

// Options are the options of Collect. DataDir or Cluster is required. The zero value of every other field is the default.
type Options struct {
	// DataDir is the data directory of a running server on this host.
	DataDir string
	// Cluster is the server; nil: Collect finds the server by DataDir.
	Cluster *cluster.Cluster
	// Mode is CPU by default.
	Mode Mode
	// Rate is the number of samples in a second for each processor. With OffCPU and Wall it also is the largest number of stacks of
	// waits in a second for each process. The default is DefaultRate.
	Rate float64
	// Duration is the duration of the profile. The default is DefaultDuration. The end of ctx ends it earlier, without an error.
	Duration time.Duration
	// Processes are the processes of the server to sample, by their ids on this host; the postmaster may be one of them. The BPF
	// programs ignore all other processes. The profile ends when all of Processes have ended. Nil means all processes of the server
	// without the postmaster.
	Processes []process.ID
	// Filter selects the samples in the profile.
	Filter Filter
	// MaxFrames bounds the frames of a stack, inlined calls included. 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Capturer names the stacks. A worker passes its own Capturer, which has already read the server's files. If it is nil, Collect
	// makes one.
	Capturer *capture.Capturer
	// Names returns the names of databases and users by OID, from a connection to the server. Collect calls it once, at
	// the end, and only if the samples do not contain all names. If Names is nil or returns an error, labels have the OIDs of
	// unknown names.
	Names func(ctx context.Context) (Names, error)
	// Texts adds the label LabelQuery, for readers with the right to see the statements of all users. The text of a query is the
	// text of one of its executions, with its constants.
	Texts bool
	// CostLimit ends the profile if the BPF programs take more than this share of all processors' time, from 0 to 1. The default is
	// DefaultCostLimit.
	CostLimit float64
	// Started is called when the sampling has begun; nil: no call. It must not wait.
	Started func()
	// Progress is called about once a second with the time since the start and the number of stacks; nil: no call. It must not
	// wait.
	Progress func(took time.Duration, samples int)
}

// Names are the names of databases and roles by OID.
type Names struct {
	Databases, Users map[uint32]string
}

// Summary describes how a profile was taken and how complete it is. Its numbers are of all processes of the server, before the
// filter, except Samples, Time and WithoutStack.
type Summary struct {
	// Mode and Rate are those of the options. Took is the length of the profile.
	Mode Mode
	Rate float64
	Took time.Duration
	// Server describes the server in the form of cluster.Cluster.String.
	Server string
	// Samples is the number of stacks in the profile.
	Samples int
	// Taken is the number of stacks that were taken. It has four parts. Labelled stacks have all labels of their process. Partial
	// and Unlabelled stacks were taken while the process was changing its entry in pg_stat_activity; Partial ones have the labels
	// that seldom change, from an earlier stack of the process. NoEntry stacks are of processes without an entry: processes that
	// start or end, and the process that collects the log.
	Taken, Labelled, Partial, Unlabelled, NoEntry int
	// Lost is the number of samples for which a buffer in the kernel had no room. NoStack is the number of samples whose stack was
	// not readable. Uncounted is the number of waits and processes for which a table in the kernel had no room.
	Lost, NoStack, Uncounted int
	// Processes is the number of processes of which there are data. Ended of them ended during the profile.
	Processes, Ended int
	// CPU and OffCPU are the times of all processes on and off processors. OffCPU is 0 in mode CPU. In modes OffCPU and Wall, BPF
	// programs have measured both at each context switch. In mode CPU, CPU is an estimate: the number of samples times the period.
	CPU, OffCPU time.Duration
	// Time is the sum of the times of all samples that passed the filter. WithoutStack is the part of Time for which no
	// stack was taken. The profile has one frame for this part.
	Time, WithoutStack time.Duration
	// KernelTime is an estimate of the processor time of the BPF programs, which is a part of the server's processor time.
	KernelTime time.Duration
	// StoppedByCost is set if the profile ended early because of Options.CostLimit.
	StoppedByCost bool
	// StoppedBySize is set if the profile ended early because there were too many processes.
	StoppedBySize bool
	// WorkerCPU is the processor time of this process during the profile.
	WorkerCPU time.Duration
	// UnseenProcessors is the number of processors of which no samples could be taken.
	UnseenProcessors int
	// The memory for a profile is bounded. Shortened is the number of stacks that have the start of the innermost function instead
	// of the exact address. Joined is the number of stacks without frames, which share one sample for their process and state. Cut
	// is the number of times that there was no room for the mappings of a process, so that frames in its own libraries may be
	// missing.
	Shortened, Joined, Cut int
	// Generated is the number of stacks that end in code compiled at run time: see backtrace.Thread.
	Generated int
	// Unreachable is the number of processes whose memory could not be read in time: see process.ErrUnreachable. Some of
	// their labels and stacks are missing.
	Unreachable int
	// Runnable is the part of OffCPU in which processes waited for a processor.
	Runnable time.Duration
	// NoQueryIDs is the number of stacks of statements that client backends ran, if none of these statements had a query id;
	// else 0.
	NoQueryIDs int
	// NoDelays is set if this kernel does not measure how long processes wait for a processor. The label off_cpu is then
	// "runnable" only after a process lost its processor, and not after a wakeup.
	NoDelays bool
	// ProcessesEnded is set if the profile ended because all of Options.Processes had ended.
	ProcessesEnded bool
	// ServerEnded is set if the server ended or restarted during the profile. The profile ends then.
	ServerEnded bool
}

// WithEntry returns the number of stacks of processes with an entry in pg_stat_activity.
func (s *Summary) WithEntry() int { return s.Labelled + s.Partial + s.Unlabelled }

// LabelledShare returns the share of stacks with all labels among the stacks of processes with an entry, from 0 to 1.
func (s *Summary) LabelledShare() float64 {
	if s.WithEntry() == 0 {
		return 1
	}
	return float64(s.Labelled) / float64(s.WithEntry())
}

// Notes returns remarks on missing parts of the profile for its reader, one sentence each.
func (s *Summary) Notes() []string {
	var notes []string
	add := func(n int, text string) {
		if n > 0 {
			notes = append(notes, units.Plural(n, text))
		}
	}
	if n := s.WithEntry(); n > 0 {
		notes = append(notes, fmt.Sprintf("%.1f %% of %s have all labels.", 100*s.LabelledShare(), units.Count(n, "stack")))
	}
	add(s.Partial, "%d {stack lacks|stacks lack} state, query and application_name: the process was changing them.")
	add(s.NoEntry, "%d {stack is of a process|stacks are of processes} without an entry in pg_stat_activity.")
	add(s.Lost, "%d {sample was|samples were} lost for lack of room.")
	add(s.Uncounted, "%d {wait or process was|waits or processes were} not counted for lack of room.")
	add(s.NoStack, "The {stack|stacks} of %d {sample was|samples were} not readable.")
	add(s.UnseenProcessors, "%d {processor was|processors were} not sampled.")
	add(s.Shortened, "%d {stack shows the start of its|stacks show the start of their} innermost function, not the line: there were too "+
		"many different stacks.")
	add(s.Joined, "%d {stack is not shown, only its|stacks are not shown, only their} time: there were too many different stacks.")
	add(s.Cut, "%d {stack lacks|stacks lack} frames: there were too many processes with libraries of their own.")
	if note := backtrace.GeneratedNote(s.Generated, s.Taken); note != "" {
		notes = append(notes, note+".")
	}
	add(s.Unreachable, "Labels or stacks of %d {process|processes} are missing: the kernel did not return from reading {its|their} "+
		"memory.")
	add(s.NoQueryIDs, "The {statement|statements} of %d {stack has|stacks have} no query id, so no query is shown. To show {it|them}: "+
		"ALTER SYSTEM SET compute_query_id = on; SELECT pg_reload_conf(); no restart is needed.")
	if s.NoDelays {
		notes = append(notes, "The label off_cpu=sleeping contains the time from the wakeup until the process got a "+
			"processor: this kernel does not count that time (CONFIG_SCHED_INFO).")
	}
	if s.StoppedByCost {
		notes = append(notes, "The profile ended early, because it cost too much.")
	}
	if s.StoppedBySize {
		notes = append(notes, "The profile ended early, after "+units.Count(s.Processes, "process")+".")
	}
	if s.ProcessesEnded {
		notes = append(notes, fmt.Sprintf("All processes had ended after %s.", s.Took.Round(time.Millisecond)))
	}
	if s.ServerEnded {
		notes = append(notes, "The server ended or restarted during the profile. Later samples are missing.")
	}
	if share := float64(s.WithoutStack) / float64(max(1, s.Time)); share >= 0.0005 { // a smaller share would be printed as 0.0 %
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
	case !(o.Rate >= 1 && o.Rate <= MaxRate): // written with a negation, so that it is also true for NaN
		return o, fmt.Errorf("%w: rate must be from 1 to %d, not %v", ErrOptions, MaxRate, o.Rate)
	case o.Duration < 0 || o.Duration > MaxDuration:
		return o, fmt.Errorf("%w: duration must be from 0 to %s, not %s", ErrOptions, MaxDuration, o.Duration)
	case o.MaxFrames < 0:
		return o, fmt.Errorf("%w: the number of frames must not be negative", ErrOptions)
	}
	return o, nil
}
