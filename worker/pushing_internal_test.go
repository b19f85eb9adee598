package worker

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/pg/state"
)

// TestTypesOfBackgroundWorkers: extensions that put ids into the types of their workers make one series, not one for each id.
func TestTypesOfBackgroundWorkers(t *testing.T) {
	t.Parallel()
	var p profile.Profile
	add := func(kind string) {
		p.Sample = append(p.Sample, &profile.Sample{Label: map[string][]string{clusterprofile.LabelBackendType: {kind}}})
	}
	for i := range 100 {
		add(fmt.Sprintf("compression [%d]", i))
	}
	add(state.ParallelWorker)
	add(state.ClientBackend)
	p.Sample = append(p.Sample, &profile.Sample{})
	foldWorkers(&p, state.BackendTypes(18))
	kinds := map[string]int{}
	for _, s := range p.Sample {
		kinds[fmt.Sprint(s.Label[clusterprofile.LabelBackendType])]++
	}
	want := map[string]int{"[]": 1, "[background worker]": 100, "[client backend]": 1, "[parallel worker]": 1}
	if !maps.Equal(kinds, want) {
		t.Errorf("got %v, want %v", kinds, want)
	}
}
