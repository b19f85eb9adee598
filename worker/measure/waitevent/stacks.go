package waitevent

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
)

// ParseStacks parses an option that selects waits whose stacks are taken: "1/N" for one in N waits, or a duration such as ">10ms"
// for longer waits.
func ParseStacks(text string) (o waits.StackOptions, err error) {
	if limit, ok := strings.CutPrefix(text, ">"); ok {
		o.Longer, err = time.ParseDuration(strings.TrimSpace(limit))
		if err != nil || o.Longer <= 0 {
			return o, fmt.Errorf("%q is no duration of more than 0, such as >10ms", text)
		}
		return o, nil
	}
	every, ok := strings.CutPrefix(text, "1/")
	o.Every, err = strconv.Atoi(every)
	if !ok || err != nil || o.Every < 1 || o.Every > 1<<30 {
		return o, fmt.Errorf("%q is neither a share of the waits, such as 1/100, nor a duration, such as >10ms", text)
	}
	return o, nil
}

// Sample types of a profile of waits.
const (
	WaitCount = "waits"
	WaitTime  = "wait"
)

// LabelPhrase is the label of a sample that describes what the process did, without names of objects; see render.PlainPhrase.
const LabelPhrase = "phrase"

// StackProfile collects stacks of waits.
type StackProfile struct {
	// Joined is the number of stacks that share a sample of their wait event, because there were too many different ones.
	Joined int
	// Count is the number of stacks in the profile. Unnamed is the number of stacks that are missing because their process ended
	// before they could be named. Generated is the number of stacks in Count that end in code compiled at run time.
	Count, Unnamed, Generated int

	server  *Server
	namer   *capture.StackNamer
	scale   int64 // number of waits for which a stack counts
	profile *profile.Profile
	builder *profilefmt.Builder
	samples map[string]*profile.Sample
}

// maxSamples bounds the samples of a StackProfile, except those of joined stacks. A sample takes about 1 kB.
const maxSamples = 1 << 16

// NewStackProfile returns an empty profile. If stacks are taken of one in N waits (o.Every), each stack is counted N times.
func (s *Server) NewStackProfile(c *capture.Capturer, o waits.StackOptions) *StackProfile {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{
			{Type: WaitCount, Unit: "count"}, {Type: WaitTime, Unit: "nanoseconds"},
		},
		DefaultSampleType: WaitTime, TimeNanos: time.Now().UnixNano(),
		PeriodType: &profile.ValueType{Type: WaitCount, Unit: "count"}, Period: int64(max(1, o.Every)),
	}
	return &StackProfile{
		server: s, namer: c.StackNamer(capture.StackNamerOptions{}), scale: p.Period, profile: p,
		builder: profilefmt.NewBuilder(p), samples: make(map[string]*profile.Sample),
	}
}

// Watch begins to read code that processes compile at run time, which the names of stacks need: see capture.StackNamer.Watch. The
// caller must call end.
func (p *StackProfile) Watch() (end func()) { return p.namer.Watch() }

// Add names stacks and adds them. unnamed is added to p.Unnamed.
func (p *StackProfile) Add(list []waits.Stack, unnamed int) {
	p.Unnamed += unnamed
	snapshots := make([]*snapshot.Snapshot, len(list))
	for i := range list {
		snapshots[i] = list[i].Snapshot
	}
	for i, t := range p.namer.NameSnapshots(snapshots) {
		p.add(&list[i], t)
	}
	p.Count += len(list)
}

func (p *StackProfile) add(w *waits.Stack, t *backtrace.Thread) {
	if t.Generated {
		p.Generated++
	}
	key := sampleKey(w, t)
	s := p.samples[key]
	if s == nil && len(p.samples) >= maxSamples {
		p.Joined++
		w, t = &waits.Stack{Event: w.Event, Took: w.Took}, capture.TooManyStacks
		key = sampleKey(w, t)
		s = p.samples[key]
	}
	if s == nil {
		class, name, _ := p.server.Names.Name(w.Event)
		s = &profile.Sample{
			Location: p.builder.Stack(t), Value: make([]int64, len(p.profile.SampleType)),
			Label: map[string][]string{"wait_event_type": {class}, "wait_event": {name}},
		}
		if len(t.Frames) == 0 {
			s.Location = []*profile.Location{p.builder.Named("[" + t.Stop + "]")}
		}
		if w.PID != 0 {
			s.Label["pid"] = []string{strconv.Itoa(w.PID)}
		}
		if w.Query != 0 {
			s.Label["query_id"] = []string{strconv.FormatInt(int64(w.Query), 10)}
		}
		if phrase := render.PlainPhrase(t.Frames, backtrace.Wait{Class: class, Event: name}, "", p.server.Cluster.Version); phrase != "" {
			s.Label[LabelPhrase] = []string{phrase}
		}
		p.samples[key] = s
		p.profile.Sample = append(p.profile.Sample, s)
	}
	s.Value[0] += p.scale
	s.Value[1] += p.scale * w.Took.Nanoseconds()
}

// sampleKey returns the key of a stack in StackProfile.samples.
func sampleKey(w *waits.Stack, t *backtrace.Thread) string {
	key := make([]byte, 0, 24+8*len(t.Frames))
	for _, word := range []uint64{uint64(w.PID), uint64(w.Event), w.Query} {
		key = binary.NativeEndian.AppendUint64(key, word)
	}
	for i := range t.Frames {
		key = binary.NativeEndian.AppendUint64(key, t.Frames[i].Address)
	}
	return string(key)
}

// SetTexts sets the label "query" of samples to the texts of their queries. texts has the texts by query id.
func (p *StackProfile) SetTexts(texts map[int64]string) {
	for _, s := range p.profile.Sample {
		if ids := s.Label["query_id"]; len(ids) == 1 {
			id, _ := strconv.ParseInt(ids[0], 10, 64)
			if text := texts[id]; text != "" {
				s.Label["query"] = []string{text}
			}
		}
	}
}

// SetBackendTypes sets the label "backend_type" of samples. of returns the type of a process; empty: it is not known.
func (p *StackProfile) SetBackendTypes(of func(pid int) string) {
	for _, s := range p.profile.Sample {
		if ids := s.Label["pid"]; len(ids) == 1 {
			pid, _ := strconv.Atoi(ids[0])
			if text := of(pid); text != "" {
				s.Label["backend_type"] = []string{text}
			}
		}
	}
}

// Profile returns the profile. took is the duration of the measurement.
func (p *StackProfile) Profile(took time.Duration) *profile.Profile {
	p.profile.DurationNanos = took.Nanoseconds()
	return p.profile
}
