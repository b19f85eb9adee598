package heap

import (
	"strconv"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/profilefmt"
)

// Sample types of a profile, with the names of Go's own heap profiles.
const (
	AllocObjects = "alloc_objects"
	AllocSpace   = "alloc_space"
	InuseObjects = "inuse_objects"
	InuseSpace   = "inuse_space"
)

// SampleTypes returns the sample types in the order of their values.
func SampleTypes() []string { return []string{AllocObjects, AllocSpace, InuseObjects, InuseSpace} }

// Profile returns the report as a profile. The values InuseObjects and InuseSpace are the blocks and bytes not freed yet.
func (r *Report) Profile() *profile.Profile {
	out := &profile.Profile{
		SampleType: []*profile.ValueType{
			{Type: AllocObjects, Unit: "count"}, {Type: AllocSpace, Unit: "bytes"},
			{Type: InuseObjects, Unit: "count"}, {Type: InuseSpace, Unit: "bytes"},
		},
		DefaultSampleType: InuseSpace, TimeNanos: r.Started.UnixNano(), DurationNanos: r.Elapsed.Nanoseconds(),
		PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 1,
		Comments: append(append([]string{r.Title()}, r.Summary()...), r.Notes()...),
	}
	b := profilefmt.NewBuilder(out)
	for _, p := range r.Paths {
		s := &profile.Sample{
			Value: []int64{int64(p.Objects), int64(p.Bytes), int64(p.LiveObjects), int64(p.LiveBytes)},
			Label: map[string][]string{"pid": {strconv.Itoa(r.PID)}},
		}
		if p.Stack == nil {
			s.Location = []*profile.Location{b.Named("[stack not recorded]")}
		} else {
			s.Location = b.Stack(p.Stack)
		}
		out.Sample = append(out.Sample, s)
	}
	return out
}
