package worker

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
)

const (
	// calibrationPause is the pause before each check whether this is a good time to compare plans with EXPLAIN. A random time of
	// at most the same length is added, so that the workers of a host do not begin at the same time.
	calibrationPause = 10 * time.Second
	// longStatement is the time for which a statement must have run before its plan is worth a comparison.
	longStatement = 5 * time.Second
	// A server may be busy with short statements all the time. So after the time patience, the comparison may begin when a
	// processor is free. After longPatience it may begin at any time, because it takes only a tenth of one processor.
	patience, longPatience = 10 * time.Minute, time.Hour
)

// planCache returns the directory in which comparisons of plans with EXPLAIN are kept; empty: they are not kept. sameUser says
// whether the worker has had its present user since its start.
func (w *Worker) planCache(sameUser bool) string {
	if dir := w.cfg.Debuginfod.CacheDir; dir != "" {
		return dir
	}
	dir, err := debuginfod.ServiceCacheDir(os.Getenv, os.Geteuid(), sameUser)
	if err != nil {
		w.log.Debug().Err(err).Msg("comparisons of plans with EXPLAIN are not kept")
	}
	return dir
}

// calibrate compares the plans that the worker reads from one run of the server with EXPLAIN, unless the server's build was
// compared before. Without this comparison, plans in the history, in incidents and on the screen are missing or unproven. The
// comparison begins at a time at which calibrationDue returns true. calibrate returns after a comparison, or when ctx or the run of
// the server ends.
func (w *Worker) calibrate(ctx context.Context, c *cluster.Cluster) {
	if w.cfg.NoCalibration {
		return
	}
	begin := time.Now()
	for pause := time.Duration(0); c.Alive(); {
		pause = max(pause, calibrationPause+rand.N(calibrationPause)) //nolint:gosec // no secret
		select {
		case <-ctx.Done():
			return
		case <-time.After(host.AlignedDelay(pause)):
		}
		pause = 0
		proven := false
		err := host.Catch("the comparison of plans", func() error {
			build, err := w.capturer.ServerBuild(c.PostmasterPID)
			if err != nil {
				return nil //nolint:nilerr // tried again
			}
			if proven = w.verbs.PlanProof(build, c.Version) != nil; proven {
				return nil
			}
			if m := sessionsOf(c); m != nil && calibrationDue(m, time.Since(begin), host.AllProcessors()) {
				pause = w.verbs.CalibratePlans(c, build)
			}
			return nil
		})
		if err != nil { // a panic
			w.log.Error().Err(err).Msg("plans are not compared")
			return
		}
		if proven {
			return
		}
	}
}

// sessionsOf reads the sessions of a server; nil: they cannot be read.
func sessionsOf(c *cluster.Cluster) *moment.Moment {
	reader, err := state.Open(*c)
	if err != nil {
		return nil
	}
	m, err := reader.Read(state.Options{})
	if err != nil {
		return nil
	}
	return m
}

// calibrationDue reports whether this is a good time to compare plans: a client's statement has run for longStatement, or no client
// runs a statement. If the worker has waited for such a time for patience, it is also enough that fewer clients run than the host
// has processors. After longPatience every time is good.
func calibrationDue(m *moment.Moment, waited time.Duration, processors int) bool {
	running, waiting := 0, 0
	for i := range m.Sessions {
		s := &m.Sessions[i]
		if s.Type != "client backend" || s.State != "active" || strings.HasPrefix(s.Application, cluster.ApplicationName) {
			continue
		}
		if s.QueryStart != nil && m.Time.Sub(*s.QueryStart) >= longStatement {
			return true
		}
		if s.Wait == nil {
			running++
		} else {
			waiting++
		}
	}
	return running+waiting == 0 || waited >= patience && running < processors || waited >= longPatience
}
