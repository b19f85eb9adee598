package runningplan

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/plan"
)

const (
	// absentProof is the time for which a build without a proof is not searched in the store again.
	absentProof = time.Minute
	// firstPause is the pause after the first failed calibration. Each further pause is four times as long, at most longestPause.
	firstPause, longestPause = time.Minute, 4 * time.Hour
	// storeWait is the time for which callers wait for a proof from the store, and endWait the time for which Stop waits for
	// calibrations. A disk that does not answer must not stop the callers, which are also the recorder and the end of the worker.
	storeWait, endWait = time.Second, 5 * time.Second
)

// Keeper has the proofs of builds (plan.Proof: the fields of plans that a calibration has compared with EXPLAIN). It reads them
// from a Store, and starts calibrations. Its methods are safe for concurrent use.
type Keeper struct {
	store Store
	load  func(id string, major int) *plan.Proof // Store.Load
	save  func(c *Calibration) error             // Store.Save
	log   zerolog.Logger
	now   func() time.Time

	mu      sync.Mutex // not locked while the store is read or written
	builds  map[serverBuild]*build
	running sync.WaitGroup
	stopped bool
	cancel  context.CancelFunc
	//nolint:containedctx // the context ends with the keeper, not with a request
	ctx context.Context
}

// serverBuild identifies a server's program by its build-id and its major version.
type serverBuild struct {
	id    string
	major int
}

// build is what the keeper has of a server's build.
type build struct {
	serverBuild

	proof  *plan.Proof   // nil: there is none
	absent time.Time     // the last time at which the store had no proof
	search chan struct{} // closed at the end of the search in the store; nil: no search runs
	until  time.Time     // callers wait for the end of the search until this time

	running bool          // a calibration runs
	pause   time.Duration // after the last failure of a calibration
	next    time.Time     // no calibration begins before this time
}

// NewKeeper returns a keeper. The log gets the results of its calibrations. The caller must call Stop at the end.
func NewKeeper(store Store, log zerolog.Logger) *Keeper {
	k := &Keeper{
		store: store, load: store.Load, save: store.Save, log: log, now: time.Now, builds: map[serverBuild]*build{},
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// Stop ends the calibrations, and waits for their end, at most the time endWait. No calibration begins after Stop.
func (k *Keeper) Stop() {
	k.cancel()
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		k.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endWait):
	}
}

// Proof returns the proven fields of a build, nil if there are none. It begins no calibration. While a build has no proof,
// Proof searches the store for it at most once a minute.
func (k *Keeper) Proof(id string, major int) *plan.Proof {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proof(k.build(id, major), false)
}

// build returns what the keeper has of a build. The caller must have locked k.mu.
func (k *Keeper) build(id string, major int) *build {
	key := serverBuild{id, major}
	b := k.builds[key]
	if b == nil {
		b = &build{serverBuild: key}
		k.builds[key] = b
	}
	return b
}

// proof returns the proof of a build, nil if there is none, or if the store does not answer within storeWait. The caller must
// have locked k.mu. proof unlocks it while it waits. If fresh is set, proof reads the store even if the store had no proof less
// than absentProof ago.
func (k *Keeper) proof(b *build, fresh bool) *plan.Proof {
	if b.proof != nil {
		return b.proof
	}
	if b.search == nil {
		if !fresh && k.now().Sub(b.absent) < absentProof {
			return nil
		}
		b.search, b.until = make(chan struct{}), time.Now().Add(storeWait)
		go k.find(b)
	}
	ended, late := b.search, time.NewTimer(time.Until(b.until))
	defer late.Stop()
	k.mu.Unlock()
	select {
	case <-ended:
	case <-late.C:
	}
	k.mu.Lock()
	return b.proof
}

// find searches the store for the proof of a build.
func (k *Keeper) find(b *build) {
	var found *plan.Proof
	err := host.Catch("the search for compared plans", func() error {
		found = k.load(b.id, b.major)
		return nil
	})
	if err != nil {
		k.log.Warn().Err(err).Msg("kept comparisons of plans with EXPLAIN cannot be read")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if b.proof == nil {
		b.proof = found
	}
	b.absent = k.now()
	close(b.search)
	b.search = nil
}

// Calibrate begins a calibration of a build in the background. It begins none if the build has a proof, if a calibration of the
// build runs already, or if the last one failed a short time ago. In the last case it returns the time until the next calibration
// is possible, otherwise 0.
func (k *Keeper) Calibrate(id string, major int, run func(ctx context.Context) (*Calibration, error)) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.build(id, major)
	// Another process may have compared the same program. While proof waits for the store, another call can begin a calibration.
	if ready, wait := k.ready(b); !ready || k.proof(b, true) != nil {
		return wait
	}
	ready, wait := k.ready(b)
	if ready {
		b.running = true
		k.running.Go(func() { k.run(b, run) })
	}
	return wait
}

// ready reports whether a calibration may begin now. If only a failure forbids it, wait is the time until the next one.
func (k *Keeper) ready(b *build) (ready bool, wait time.Duration) {
	if k.stopped || b.running {
		return false, 0
	}
	wait = max(0, b.next.Sub(k.now()))
	return wait == 0, wait
}

func (k *Keeper) run(b *build, run func(ctx context.Context) (*Calibration, error)) {
	var done *Calibration
	err := host.Catch("a calibration of plans", func() (err error) {
		done, err = run(k.ctx)
		return err
	})
	if err == nil && (done.Build != b.id || done.Major != b.major) {
		err = errors.New("the server's program has changed meanwhile")
	}
	now, stopped := k.now(), k.ctx.Err() != nil
	k.mu.Lock()
	b.running = false
	switch {
	case stopped:
	case err == nil:
		b.proof = done.Proof
	default:
		b.pause = min(max(firstPause, 4*b.pause), longestPause)
		b.next = now.Add(b.pause)
	}
	next := b.next
	k.mu.Unlock()
	switch {
	case stopped:
		return
	case err != nil:
		k.log.Warn().Err(err).Str("build_id", b.id).Time("next_try", next).
			Msg("plans could not be compared with EXPLAIN; plans of the history are left out until then")
		k.keep(k.store.SaveFailure(b.id, b.major, &Failure{Time: now, Next: next, Reason: err.Error()}))
		return
	}
	k.log.Info().Str("build_id", b.id).Int("server_version", b.major).Int("proven", len(done.Proof.Fields)).
		Int("compared", done.Proof.Compared).Int("statements_left_out", len(done.Skipped)).
		Dur("server_ms", done.Cost).Msg("plans are compared with EXPLAIN")
	for _, difference := range done.Differences {
		k.log.Warn().Str("field", difference).Msg("a field of plans differs from EXPLAIN and is left out")
	}
	k.keep(k.save(done))
}

func (k *Keeper) keep(err error) {
	if err != nil {
		k.log.Warn().Err(err).Msg("the comparison of plans with EXPLAIN is not kept: it is made again at each start")
	}
}
