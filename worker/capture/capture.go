// Package capture turns a process into a named stack: it has the process
// stopped and copied (package ptrace), walks the copy (package unwind) and
// names what it finds (package symbol). It decides nothing about who may ask
// and prints nothing.
package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/worker/gostack"
	"pg_stat_backtrace/worker/host/gomaxprocs"
	"pg_stat_backtrace/worker/jitcode"
	"pg_stat_backtrace/worker/procmap"
	"pg_stat_backtrace/worker/symbolize"
	"pg_stat_backtrace/worker/trace"
)

// DefaultConcurrency bounds how many captures run side by side.
const DefaultConcurrency = 16

// maxRecaptures bounds how often a capture is repeated because the stack went
// on in memory that the first copy did not hold (an alternate signal stack).
const maxRecaptures = 2

// Config configures a Capturer; the zero value is the default.
type Config struct {
	// Concurrency bounds how many captures run side by side; 0 means
	// DefaultConcurrency.
	Concurrency int
	// Remote is where debug files come from that this host does not have; nil
	// means nowhere.
	Remote symbolize.Remote
	// DebugDirs are the folders below which separate debug files are looked
	// for; nil means debugfile.DefaultFolder.
	DebugDirs []string
	// LinesWait bounds how long a capture waits for source lines and inlined
	// calls that are not known yet; 0 means DefaultLinesWait. An answer that
	// comes before has names from symbol tables only.
	LinesWait time.Duration
	// AwaitNames makes a capture wait, as long as for source lines, for the names that are derived from the code of a
	// stripped server (package selfnames). Otherwise the first answers go out without them.
	AwaitNames bool
	// Report is told, once for each image, what keeps names or lines from being
	// found: debug files of another build, damaged ones. It must not wait. Nil
	// means that nobody is told.
	Report func(error)
	// Wanted is told of which image, by its file's base name, a debug file is
	// about to be asked for, and by which build-id. It must not wait. Nil means
	// that nobody is told.
	Wanted func(image, buildID string)
}

// Options says how one capture is done; the zero value is the default.
type Options struct {
	// MaxFrames bounds each thread's frames, inlined calls included; 0 means
	// unwind.DefaultMaxFrames.
	MaxFrames int
	// Deadline bounds the wait for the stop; 0 means ptrace's default.
	Deadline time.Duration
	// MaxStack bounds the bytes of stack copied; 0 means ptrace's default.
	MaxStack int
	// AllThreads captures every thread in one stop, not only the first.
	AllThreads bool
	// NoContext leaves out what a PostgreSQL process says of itself: the levels of its functions, the text of its
	// query and its wait event. A caller to whom pg_stat_activity would not show the query must set it.
	NoContext bool
	// NonStop captures without stopping the process. Its threads are then
	// seen one after another.
	NonStop bool
}

// A Capturer captures processes and remembers the images they run. It is safe
// for concurrent use.
type Capturer struct {
	arch      *arch.Arch
	images    *symbolize.Cache
	processes *procmap.Cache
	// serverFact and goFact are what the cache of processes keeps for this package.
	serverFact procmap.Fact[serverProcess]
	goFact     procmap.Fact[*gostack.Process]
	programs   *programs

	limit *semaphore.Weighted

	// anticipating is set while the images of a process are read before its capture needs them.
	anticipating atomic.Bool

	linesWait time.Duration
	sharing   sharing
	walks     sync.Pool // *[]unwind.Frame, to be used again
}

// New returns a Capturer for processes of this host.
func New(cfg Config) (*Capturer, error) {
	host := arch.Host()
	if host == nil {
		return nil, symbolize.ErrArchitecture
	}
	host = forAddresses(host)
	n := cfg.Concurrency
	if n <= 0 {
		n = DefaultConcurrency
	}
	imgs := symbolize.NewCache(host, &symbolize.Sources{
		Cache: dwarf.NewCache(0), Folders: cfg.DebugDirs, Report: cfg.Report, Remote: cfg.Remote,
		Wanted: cfg.Wanted, AwaitNames: cfg.AwaitNames,
	})
	return &Capturer{
		arch: host, images: imgs, processes: procmap.NewCache(imgs), programs: newPrograms(),
		linesWait: cmp.Or(cfg.LinesWait, symbolize.DefaultLinesWait),
		limit:     semaphore.NewWeighted(int64(n)),
		walks:     sync.Pool{New: func() any { f := make([]unwind.Frame, 0, 64); return &f }},
	}, nil
}

// Capture returns the named stack of the target. Errors are those of package
// ptrace, or ctx's. Callers that ask for the same process in the same way at
// the same time share one stop; one that gives up leaves it to the others.
// The trace is shared: it must not be changed.
func (c *Capturer) Capture(ctx context.Context, target ptrace.Target, o Options) (*trace.Trace, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.sharing.do(ctx, requestKey{target, o}, func(ctx context.Context) (*trace.Trace, error) {
		return c.capture(ctx, target, o)
	})
}

func (c *Capturer) capture(ctx context.Context, target ptrace.Target, o Options) (*trace.Trace, error) {
	release, err := c.place(ctx, 3*cmp.Or(o.Deadline, defaultDeadline))
	if err != nil {
		return nil, err
	}
	defer release()
	gomaxprocs.Begin()
	defer gomaxprocs.End()
	start := time.Now()
	if target.StartTime == 0 {
		// The images are remembered by process, and a process is known by
		// its start time.
		st, err := procfs.ReadStat(target.PID)
		if err == nil {
			target.StartTime = st.StartTime
		}
	}
	opts := ptrace.Options{
		MaxStack: o.MaxStack, RedZone: c.arch.RedZone, Deadline: o.Deadline, AllThreads: o.AllThreads,
	}
	r := run{capturer: c, target: target, options: o,
		key:   procmap.ProcessKey{PID: target.PID, StartTime: target.StartTime},
		check: procmap.NewCheck(target.PID), began: start,
		files: symbolize.Deadline{At: start.Add(cmp.Or(o.Deadline, defaultDeadline)), After: c.linesWait}}
	defer r.files.Stop()
	if c.images.Empty() && c.anticipating.CompareAndSwap(false, true) {
		go func() {
			defer c.anticipating.Store(false)
			c.anticipate(r.key)
		}()
		runtime.Gosched() // let it begin: there may be one processor
	}
	r.golang, _ = c.goFact.Of(c.processes, r.key)
	defer r.check.Close()
	if l := c.processes.Maps(r.key); l != nil && !o.AllThreads && r.check.HoldsSoon(l, start) {
		opts.MapsSnapshot = l.Snapshot
	}
	if !o.NoContext {
		r.server = c.serverProcess(r.key, opts.MapsSnapshot != nil)
	}
	opts.ExtraReads, opts.Coroutines = r.trail(), r.golang.Trail()
	for attempt := 0; ; attempt++ {
		b, err := r.once(ctx, opts)
		if err != nil {
			return nil, err
		}
		if b.stale { // as only a capture by a layout can be
			opts.MapsSnapshot = nil
			attempt--
			continue
		}
		b.trace.Total = time.Since(start)
		more := r.learnGo(&b)
		more = attempt < maxRecaptures && (r.locate(&b) || more)
		if len(b.missing) == 0 && !more || attempt >= maxRecaptures {
			return b.trace, nil
		}
		opts.Also = append(opts.Also, b.missing...)
		opts.ExtraReads, opts.Coroutines = r.trail(), r.golang.Trail()
	}
}

// run is one call of Capturer.Capture, which may take several captures.
type run struct {
	capturer *Capturer
	target   ptrace.Target
	options  Options
	key      procmap.ProcessKey
	check    procmap.Check
	server   serverProcess
	began    time.Time
	files    symbolize.Deadline // for what must be read from files
	golang   *gostack.Process   // nil: no Go code was met
	// generated says where code that the process has made is described, as far as that was found.
	generated jitcode.Whereabouts
}

// once captures and unwinds once. What it went by is compared with the process
// afterwards, as far as it was not before.
func (r *run) once(ctx context.Context, opts ptrace.Options) (built, error) {
	c := r.capturer
	snap, notStopped, err := snapshot(ctx, r.target, opts, r.options.NonStop)
	if err != nil {
		return built{}, err
	}
	defer snap.Release()
	b := r.build(snap)
	if b.space.Unread != "" {
		return built{}, &trace.ReadingError{File: b.space.Unread, After: time.Since(r.began)}
	}
	byLayout := opts.MapsSnapshot != nil && snap.MapsSnapshot == opts.MapsSnapshot
	if snap.Engine != ptrace.Engine {
		r.check.Before = nil // to observe it may have taken a while
	}
	sound := true
	switch {
	case byLayout:
		if sound, err = r.check.Sound(snap.Maps, b.used, b.mapsTrusted); errors.Is(err, ptrace.ErrUnreachable) {
			return built{}, unreachable(r.target.PID, r.began)
		} else if err != nil {
			return built{}, fmt.Errorf("process %d: %w", r.target.PID, ptrace.ErrExited)
		}
	case r.check.File != nil:
		// The mappings were read just before the stop. If the process has ended since, or cannot be asked, they are
		// what counts.
		same, err := r.check.Unchanged(snap.Maps, b.used)
		sound = same || err != nil
	}
	switch {
	case !sound:
		c.processes.ForgetMaps(r.key)
		if b.stale = byLayout; !byLayout {
			// Some image may have been taken for one that was at its place before: they are all looked at afresh.
			b = r.build(snap)
		}
	case r.key.StartTime != 0 && !r.options.AllThreads && snap.MapsSnapshot != nil:
		c.processes.KeepMaps(r.key, snap, b.used, r.began)
	}
	b.trace.NotStopped = notStopped
	return b, nil
}

// built is what becomes of a snapshot.
type built struct {
	trace *trace.Trace
	// missing are the addresses at which walks left the copied memory though
	// the process has memory there.
	missing     []uint64
	used        []procmap.Usage // the mappings in which frames lie, in order
	mapsTrusted bool            // all walks have ended where other mappings would not have led them on, see settled
	brokenWalk  bool            // a walk ended where a stack is left for another one, or where memory is missing
	stale       bool            // the process has other mappings than the layout said
	space       *procmap.Space
}

// build unwinds and names a snapshot.
func (c *Capturer) build(snap *ptrace.Snapshot, space *procmap.Space, o Options, server *serverProcess) built {
	t := &trace.Trace{
		PID: snap.PID, Engine: snap.Engine, Pause: snap.Pause, Held: snap.Held,
		Threads: make([]trace.Thread, len(snap.Threads)),
	}
	w := c.walker(space, o)
	defer w.close()
	b := built{trace: t, mapsTrusted: true, space: space}
	for i := range snap.Threads {
		th := &snap.Threads[i]
		began := time.Now()
		stop := w.walk(th, snap.Also)
		ended := time.Now()
		t.Threads[i] = w.describe(th, stop)
		b.note(w.frames, stop)
		named := time.Now()
		if i == 0 && (snap.Engine == ptrace.Engine || th.Syscall != nil) {
			server.read(t, snap, w.frames, space)
		}
		t.Unwind += ended.Sub(began)
		t.Symbolize += named.Sub(ended)
		t.Context += time.Since(named)
	}
	return b
}

// note keeps what a walk has gone by, and what it lacked.
func (b *built) note(frames []unwind.Frame, stop unwind.Stop) {
	b.used = b.space.UsedBy(frames, b.used)
	b.mapsTrusted = b.mapsTrusted && settled(stop.Reason)
	b.brokenWalk = b.brokenWalk || stop.Reason == unwind.NoMemory || stop.Reason == unwind.StackSwitch
	if stop.Reason == unwind.NoMemory && b.space.Mapped(stop.Address) {
		b.missing = append(b.missing, stop.Address)
	}
}

// settled reports whether a walk that ended so has believed nothing but the mappings in which its frames lie.
func settled(r unwind.Reason) bool {
	return r == unwind.EndOfStack || r == unwind.MaxFrames || r == unwind.NeverReturns
}
