package export

import (
	"cmp"
	"fmt"
	"sort"

	"github.com/google/pprof/profile"
)

// Labels of samples, and of series.
const (
	labelBackend = "backend_type"
	labelCluster = "cluster"
	labelMode    = "mode"
	unknown      = "unknown"
)

// series is the profile of one type of backend.
type series struct {
	backendType string
	profile     *profile.Profile
}

// split divides a profile into a series for each type of backend. It removes all labels of samples except those in the
// list keep, because a receiver makes a series for each set of labels. Process ids or query ids would make too many
// series.
func split(p *profile.Profile, keep []string) ([]series, error) {
	types := make(map[string][]*profile.Sample)
	for _, s := range p.Sample {
		kind := unknown
		if values := s.Label[labelBackend]; len(values) > 0 {
			kind = values[0]
		}
		kept := &profile.Sample{Location: s.Location, Value: s.Value}
		for _, name := range keep {
			if values := s.Label[name]; len(values) > 0 {
				if kept.Label == nil {
					kept.Label = make(map[string][]string)
				}
				kept.Label[name] = values
			}
		}
		types[kind] = append(types[kind], kept)
	}
	all := make([]series, 0, len(types))
	for kind, samples := range types {
		part := &profile.Profile{
			SampleType: p.SampleType, DefaultSampleType: p.DefaultSampleType, Sample: samples, Mapping: p.Mapping,
			Location: p.Location, Function: p.Function, TimeNanos: p.TimeNanos, DurationNanos: p.DurationNanos,
			PeriodType: p.PeriodType, Period: p.Period,
		}
		// Merge adds up samples that have become equal, and drops locations and functions that no sample uses.
		merged, err := profile.Merge([]*profile.Profile{part})
		if err != nil {
			return nil, fmt.Errorf("split a profile by type of backend: %w", err)
		}
		all = append(all, series{kind, merged})
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Compare(a.backendType, b.backendType) < 0
	})
	return all, nil
}
