// Package capture makes the named stack of a process. It stops and copies the process (package ptrace), walks the
// copy (package unwind) and names the frames (package symbolize). It checks no privileges and prints nothing.
//
// ReadCore makes the named stacks of a core file. It uses the memory in the core, and the files that the core names.
package capture

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/levels"
)

// maxRecaptures is the largest number of repeated stops for one capture. A capture is repeated if the stack continues
// in memory outside the first copy (an alternate signal stack), or if another stop can copy what the walk lacked for Go
// code or generated code.
const maxRecaptures = 2

// Config configures a Capturer. The zero value is the default.
type Config struct {
	// Concurrency bounds how many captures run at the same time; 0 means limits.Captures.
	Concurrency int
	// Remote provides debug files that this host does not have; nil means that none are downloaded.
	Remote symbolize.Remote
	// DebugDirs are the folders to search for separate debug files; nil means elfimage.DefaultFolder.
	DebugDirs []string
	// LinesWait bounds how long a capture waits for source lines and inlined calls; 0 means
	// symbolize.DefaultLinesWait. After that time the result has only names from symbol tables.
	LinesWait time.Duration
	// AwaitNames makes a capture wait for the names that are derived from the code of a stripped server (package
	// selfnames), within the same bound as source lines. Without it, the first captures do not have these names.
	AwaitNames bool
	// Kept, if not nil, returns the folder in which names and lines are kept for the next run of this program.
	Kept func() buildcache.Folder
	// Scanning, if not nil, is called before the code of a stripped server is scanned for names that are then kept in
	// the folder. The function ended that it returns is called after the scan, with the error that prevents keeping the
	// names, or nil. Neither function may block.
	Scanning func(image, folder string) (ended func(error))
	// Report, if not nil, is called once for each image with the error that causes names or lines to be missing, such
	// as a damaged debug file. It must not block.
	Report func(error)
	// Wanted, if not nil, is called before a debug file is requested, with the base name of the image's file and the
	// build-id. It must not block.
	Wanted func(image, buildID string)
}

// Options configures one capture. The zero value is the default.
type Options struct {
	// MaxFrames bounds each thread's frames, inlined calls included; 0 means unwind.DefaultMaxFrames.
	MaxFrames int
	// Deadline bounds the wait for the stop; 0 means snapshot.DefaultDeadline.
	Deadline time.Duration
	// MaxStack bounds the bytes of a stack that are copied; 0 means 1 MiB.
	MaxStack int
	// AllThreads captures every thread in one stop, instead of the main thread only.
	AllThreads bool
	// NoContext leaves out the data in the memory of a PostgreSQL process: details of its functions, the text of its
	// query and its wait event. The caller must set NoContext for users who may not see the query in pg_stat_activity.
	NoContext bool
	// NonStop captures without stopping the process. Its threads are then sampled one after another.
	NonStop bool
	// PreferNonStop captures the main thread of a process without a stop if the thread sleeps and its whole stack can
	// be read. Otherwise it stops the process. It has no effect with AllThreads or NonStop.
	PreferNonStop bool
}

// A Capturer captures processes and caches the images they run. It is safe for concurrent use.
type Capturer struct {
	arch      *arch.Arch
	images    *symbolize.Cache
	processes *naming.Cache
	// serverFact and goFact are facts that this package keeps in processes, for each process: about its server's
	// program, and about its Go code.
	serverFact naming.Fact[serverProcess]
	goFact     naming.Fact[*naming.GoProcess]
	programs   *programs

	limit  *semaphore.Weighted
	memory *memoryReads

	// anticipating is set while anticipate runs.
	anticipating atomic.Bool

	linesWait time.Duration
	sharing   sharing
	walks     sync.Pool // *[]unwind.Frame, for reuse
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
		n = limits.Captures
	}
	imgs := symbolize.NewCache(host, &symbolize.Sources{
		Cache: dwarf.NewCache(0), Folders: cfg.DebugDirs, Report: cfg.Report, Remote: cfg.Remote,
		Wanted: cfg.Wanted, AwaitNames: cfg.AwaitNames, Kept: cfg.Kept, Scanning: cfg.Scanning,
	})
	return &Capturer{
		arch: host, images: imgs, processes: naming.NewCache(imgs), programs: newPrograms(),
		linesWait: cmp.Or(cfg.LinesWait, symbolize.DefaultLinesWait),
		limit:     semaphore.NewWeighted(int64(n)),
		memory:    newMemoryReads(),
		walks:     sync.Pool{New: func() any { f := make([]unwind.Frame, 0, 64); return &f }},
	}, nil
}

// Keep saves results of this run for the next run, in the folder of Config.Kept. Call it before the program ends. It
// waits for the file system for two seconds at most.
func (c *Capturer) Keep() {
	const longest = 2 * time.Second
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		defer symbolize.Survive(func(...error) {})
		_ = c.images.Keep() // after an error, the next run reads the files again
	}()
	select {
	case <-kept:
	case <-time.After(longest):
	}
}

// Capture returns the named stack of the target. The errors are those of package ptrace, or ctx's error. Concurrent
// calls with the same target and options share one stop. If a call is cancelled, the other calls still get the result.
// Callers share the trace and must not change it.
func (c *Capturer) Capture(ctx context.Context, target process.Target, o Options) (*backtrace.Trace, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.sharing.do(ctx, newRequestKey(target, o), func(ctx context.Context, taken func()) (*backtrace.Trace, error) {
		return c.capture(ctx, target, o, taken)
	})
}

// capture is Capture without the sharing of captures. It calls the callback taken after each snapshot: see sharedWork.
func (c *Capturer) capture(
	ctx context.Context, target process.Target, o Options, taken func(),
) (*backtrace.Trace, error) {
	release, err := c.acquire(ctx, 3*cmp.Or(o.Deadline, snapshot.DefaultDeadline))
	if err != nil {
		return nil, err
	}
	defer release()
	host.BeginWork()
	defer host.EndWork()
	start := time.Now()
	if target.StartTime == 0 {
		// The caches need the start time, because it identifies the process.
		st, err := process.ReadStat(target.PID)
		if err == nil {
			target.StartTime = st.StartTime
		}
	}
	opts := snapshot.Options{
		MaxStack: o.MaxStack, RedZone: c.arch.RedZone, Deadline: o.Deadline, AllThreads: o.AllThreads,
	}
	r := run{capturer: c, target: target, options: o, taken: taken,
		key:   naming.ProcessKey{PID: target.PID, StartTime: target.StartTime},
		check: naming.NewCheck(target.PID), began: start,
		files: symbolize.Deadline{At: start.Add(cmp.Or(o.Deadline, snapshot.DefaultDeadline)), After: c.linesWait}}
	defer r.files.Stop()
	if c.images.Empty() && c.anticipating.CompareAndSwap(false, true) {
		go func() {
			defer c.anticipating.Store(false)
			c.anticipate(r.key)
		}()
		runtime.Gosched() // let the goroutine begin: there may be only one processor
	}
	r.golang, _ = c.goFact.Of(c.processes, r.key)
	defer r.check.Close()
	if l := c.processes.Maps(r.key); l != nil && !o.AllThreads && r.check.UnchangedWithTimeout(l, start) {
		opts.MapsSnapshot = l.Snapshot
	}
	if !o.NoContext {
		r.server = c.serverProcess(r.key, opts.MapsSnapshot != nil)
	}
	opts.ExtraReads, opts.Coroutines = r.extraReads(), r.golang.Reads()
	if o.PreferNonStop && !o.NonStop && !o.AllThreads {
		if t := r.captureAsleep(ctx, opts); t != nil {
			t.Total = time.Since(start)
			return t, verifyRights(&target)
		}
	}
	for attempt := 0; ; attempt++ {
		b, err := r.captureOnce(ctx, opts)
		if err != nil {
			return nil, err
		}
		if b.stale { // at most twice: with cached mappings, and with mappings that changed before the stop
			opts.MapsSnapshot = nil
			attempt--
			continue
		}
		b.trace.Total = time.Since(start)
		more := r.learnGo(&b)
		more = attempt < maxRecaptures && (r.findGenerated(&b) || more)
		if len(b.missing) == 0 && !more || attempt >= maxRecaptures {
			return b.trace, verifyRights(&target)
		}
		opts.Also = append(opts.Also, b.missing...)
		opts.ExtraReads, opts.Coroutines = r.extraReads(), r.golang.Reads()
	}
}

// verifyRights returns an error if the target has executed a program with other rights since the caller identified it.
// The capture also reads the target's memory without a stop, so it may have read memory of that program. If the process
// has ended, verifyRights returns nil.
func verifyRights(target *process.Target) error {
	if target.Rights == nil || target.Proof.Holds() {
		return nil
	}
	if err := target.Rights.Verify(target.PID); !errors.Is(err, process.ErrExited) {
		return err
	}
	return nil
}

// run is one call of Capturer.Capture, which may take several snapshots.
type run struct {
	capturer *Capturer
	target   process.Target
	options  Options
	taken    func() // called after each snapshot
	key      naming.ProcessKey
	check    naming.Check
	server   serverProcess
	began    time.Time
	files    symbolize.Deadline // deadline for reading files
	golang   *naming.GoProcess  // nil: no frame was in Go code so far
	// generated has the known places where the process keeps descriptions of its generated code.
	generated naming.JITLocations
	// retaken is set after a snapshot whose mappings were read just before it and had changed meanwhile. There is at most one.
	retaken bool
}

// captureAsleep captures the process without a stop. It returns nil if the process does not sleep, if the walk did not
// reach the end of the stack, or on any error. The caller then stops the process.
func (r *run) captureAsleep(ctx context.Context, opts snapshot.Options) *backtrace.Trace {
	opts.Deadline = min(cmp.Or(opts.Deadline, snapshot.DefaultDeadline), lookTime)
	snap, err := observe.Asleep(ctx, r.target, opts)
	if err != nil {
		return nil
	}
	r.taken() // before use, which may wait for files
	b, err := r.use(snap, opts)
	if err != nil || b.stale || b.brokenWalk || len(b.missing) > 0 || len(b.space.Generated.Unknown) > 0 ||
		!b.trace.Threads[0].Whole || r.runsGo(&b) {
		return nil
	}
	b.trace.Slept = true
	return b.trace
}

// captureOnce takes and unwinds a snapshot. For a process that is sampled on the CPU it takes up to five snapshots,
// until the stack shows all PL/pgSQL levels.
func (r *run) captureOnce(ctx context.Context, opts snapshot.Options) (b built, err error) {
	const samples = 5 // largest number of snapshots
	deadline := cmp.Or(opts.Deadline, snapshot.DefaultDeadline)
	for i := 1; ; i++ {
		b, err = r.tryOnce(ctx, opts)
		if err != nil || b.stale || b.trace.LevelsMissing == "" || b.trace.LevelsMissing == levels.Outer || i == samples {
			return b, err
		}
		if opts.Deadline = deadline - time.Since(r.began); opts.Deadline < deadline/2 {
			return b, nil
		}
	}
}

// tryOnce takes and unwinds one snapshot for captureOnce.
func (r *run) tryOnce(ctx context.Context, opts snapshot.Options) (built, error) {
	snap, notStopped, err := takeSnapshot(ctx, r.target, opts, r.options.NonStop)
	r.taken()
	if err != nil {
		return built{}, err
	}
	b, err := r.use(snap, opts)
	if err == nil {
		b.trace.NotStopped = notStopped
	}
	return b, err
}

// use unwinds a snapshot that was taken with opts, and releases it. It compares the mappings that the walk used with those of
// the live process, except the mappings in r.check.Before.
func (r *run) use(snap *snapshot.Snapshot, opts snapshot.Options) (b built, err error) {
	c := r.capturer
	defer snap.Release()
	b = r.build(snap)
	if b.space.Unread != "" {
		return built{}, &backtrace.ReadingError{File: b.space.Unread, After: time.Since(r.began)}
	}
	usedCache := opts.MapsSnapshot != nil && snap.MapsSnapshot == opts.MapsSnapshot
	if snap.Engine != snapshot.EngineStop {
		r.check.Before = nil // a snapshot without a stop may have taken long: compare all mappings again
	}
	stillMapped := true
	switch {
	case usedCache:
		if stillMapped, err = r.check.StillMapped(snap.Maps, b.used, b.mapsTrusted); errors.Is(err, process.ErrUnreachable) {
			return built{}, unreachable(r.target.PID, r.began)
		} else if err != nil {
			return built{}, process.ReadError(r.target.PID, r.target.PID, err)
		}
	case r.check.File != nil:
		// The mappings were read just before the stop. They are still used if the process has ended since, or if they
		// cannot be compared. A walk can end at code that the process has mapped in between, so all mappings are compared then.
		same, err := r.check.StillMapped(snap.Maps, b.used, !b.unmapped || r.retaken)
		stillMapped = same || err != nil
	}
	switch {
	case !stillMapped:
		c.processes.ForgetMaps(r.key)
		b.stale = usedCache || b.unmapped && !r.retaken
		r.retaken = r.retaken || b.stale && !usedCache
		if !b.stale {
			// A cached image may belong to a file that was mapped at the same place earlier. After ForgetMaps, build
			// looks up all images again.
			b = r.build(snap)
		}
	case r.key.StartTime != 0 && !r.options.AllThreads && snap.MapsSnapshot != nil:
		c.processes.KeepMaps(r.key, snap, b.used, r.began)
	}
	return b, nil
}

// built is the result of unwinding a snapshot.
type built struct {
	trace *backtrace.Trace
	// missing has the addresses at which walks ended because the snapshot does not have their memory, although the
	// process maps it.
	missing     []uint64
	used        []naming.Usage // the mappings in which frames of the walks lie, sorted by index
	mapsTrusted bool           // no walk ended for a reason that other mappings could change
	unmapped    bool           // a frame lies in no mapping
	brokenWalk  bool           // a walk ended at a switch of stacks, or at missing memory
	stale       bool           // the process no longer has the mappings, and another snapshot is needed
	space       *naming.Space
}

// build unwinds and names the threads of a snapshot, and adds what the memory of a PostgreSQL server shows.
func (c *Capturer) build(snap *snapshot.Snapshot, space *naming.Space, o Options, server *serverProcess) built {
	t := &backtrace.Trace{
		PID: snap.PID, Engine: snap.Engine, Pause: snap.Pause, Held: snap.Held,
		Threads: make([]backtrace.Thread, len(snap.Threads)),
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
		b.record(w.frames, stop)
		named := time.Now()
		if i == 0 {
			server.read(t, snap, w.frames, space)
		}
		t.Unwind += ended.Sub(began)
		t.Symbolize += named.Sub(ended)
		t.Context += time.Since(named)
	}
	return b
}

// record adds the mappings that a walk used, and the address of the memory that was missing for the walk, if any.
func (b *built) record(frames []unwind.Frame, stop unwind.Stop) {
	b.used = b.space.UsedBy(frames, b.used)
	// The mappings of code compiled at run time may have changed since they were cached.
	b.unmapped = b.unmapped || !b.space.AllMapped(frames)
	b.mapsTrusted = b.mapsTrusted && endsInsideFrames(stop.Reason) && len(b.space.Generated.Unknown) == 0 && !b.unmapped
	b.brokenWalk = b.brokenWalk || stop.Reason == unwind.NoMemory || stop.Reason == unwind.StackSwitch
	if stop.Reason == unwind.NoMemory && b.space.Mapped(stop.Address) {
		b.missing = append(b.missing, stop.Address)
	}
}

// endsInsideFrames reports whether a walk that ended for reason r used only the mappings in which its frames lie.
func endsInsideFrames(r unwind.Reason) bool {
	return r == unwind.EndOfStack || r == unwind.MaxFrames || r == unwind.NeverReturns
}

// Loaded returns the executable images of a process, the program first.
func (c *Capturer) Loaded(pid int) ([]symbolize.Loaded, error) { return c.images.Loaded(pid) }
