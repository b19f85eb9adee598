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
)

// Keeper has the proofs of builds (plan.Proof: the fields of plans that a calibration has compared with EXPLAIN). It reads them
// from a Store, and starts calibrations. Its methods are safe for concurrent use.
type Keeper struct {
	store Store
	log   zerolog.Logger
	now   func() time.Time

	mu      sync.Mutex
	proofs  map[serverBuild]*plan.Proof
	absent  map[serverBuild]time.Time // the last time at which the store had no proof
	tries   map[serverBuild]*try
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

// try is the state of the calibrations of a build.
type try struct {
	running bool
	pause   time.Duration // after the last failure
	next    time.Time     // no calibration begins before this time
}

// NewKeeper returns a keeper. The log gets the results of its calibrations. The caller must call Stop at the end.
func NewKeeper(store Store, log zerolog.Logger) *Keeper {
	k := &Keeper{
		store: store, log: log, now: time.Now,
		proofs: map[serverBuild]*plan.Proof{}, absent: map[serverBuild]time.Time{}, tries: map[serverBuild]*try{},
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// Stop ends the calibrations, and waits for their end. No calibration begins after Stop.
func (k *Keeper) Stop() {
	k.cancel()
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	k.running.Wait()
}

// Proof returns the proven fields of a build, nil if there are none. It begins no calibration. While a build has no proof,
// Proof searches the store for it at most once a minute.
func (k *Keeper) Proof(id string, major int) *plan.Proof {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proof(serverBuild{id, major}, false)
}

// proof returns the proof of a build, nil if there is none. The caller must have locked k.mu. If fresh is set, proof reads the
// store even if the store had no proof less than absentProof ago.
func (k *Keeper) proof(b serverBuild, fresh bool) *plan.Proof {
	if p := k.proofs[b]; p != nil {
		return p
	}
	if !fresh && k.now().Sub(k.absent[b]) < absentProof {
		return nil
	}
	if p := k.store.Load(b.id, b.major); p != nil {
		k.proofs[b] = p
		return p
	}
	k.absent[b] = k.now()
	return nil
}

// Calibrate begins a calibration of a build in the background. It begins none if the build has a proof, if a calibration of the
// build runs already, or if the last one failed a short time ago. In the last case it returns the time until the next calibration
// is possible, otherwise 0.
func (k *Keeper) Calibrate(id string, major int, run func(ctx context.Context) (*Calibration, error)) time.Duration {
	b := serverBuild{id, major}
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tries[b]
	if t == nil {
		t = &try{}
		k.tries[b] = t
	}
	now := k.now()
	switch {
	case k.stopped || t.running:
		return 0
	case now.Before(t.next):
		return t.next.Sub(now)
	case k.proof(b, true) != nil: // another process may have compared the same program
		return 0
	}
	t.running = true
	k.running.Go(func() { k.run(b, t, run) })
	return 0
}

func (k *Keeper) run(b serverBuild, t *try, run func(ctx context.Context) (*Calibration, error)) {
	var done *Calibration
	err := host.Catch("a calibration of plans", func() (err error) {
		done, err = run(k.ctx)
		return err
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	t.running = false
	if k.ctx.Err() != nil {
		return
	}
	if err == nil && (done.Build != b.id || done.Major != b.major) {
		err = errors.New("the server's program has changed meanwhile")
	}
	if err != nil {
		t.pause = min(max(firstPause, 4*t.pause), longestPause)
		t.next = k.now().Add(t.pause)
		k.log.Warn().Err(err).Str("build_id", b.id).Time("next_try", t.next).
			Msg("plans could not be compared with EXPLAIN; plans of the history are left out until then")
		k.keep(k.store.SaveFailure(b.id, b.major, &Failure{Time: k.now(), Next: t.next, Reason: err.Error()}))
		return
	}
	k.proofs[b] = done.Proof
	k.log.Info().Str("build_id", b.id).Int("server_version", b.major).Int("proven", len(done.Proof.Fields)).
		Int("compared", done.Proof.Compared).Int("statements_left_out", len(done.Skipped)).
		Dur("server_ms", done.Cost).Msg("plans are compared with EXPLAIN")
	for _, difference := range done.Differences {
		k.log.Warn().Str("field", difference).Msg("a field of plans differs from EXPLAIN and is left out")
	}
	k.keep(k.store.Save(done))
}

func (k *Keeper) keep(err error) {
	if err != nil {
		k.log.Warn().Err(err).Msg("the comparison of plans with EXPLAIN is not kept: it is made again at each start")
	}
}
