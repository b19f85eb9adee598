package incident

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/state"
)

// ProfileTime is the length of the profile of an incident.
const ProfileTime = 10 * time.Second

// Limits of the cost and the size of a profile.
const (
	profileRate      = 49                     // samples per second, with ByKernel
	profileCost      = 0.02                   // part of all processors' time, with ByKernel
	samplePause      = 250 * time.Millisecond // between two samples of all processes, with BySamples
	sampleCost       = 0.05                   // part of one processor's time, with BySamples
	sampleLimit      = 50 * time.Millisecond  // for one stack
	maxProfileStacks = 50
	maxProfileGroups = 5000
)

// Methods of a profile.
const (
	ByKernel  = "kernel"  // BPF programs follow each context switch
	BySamples = "samples" // the stacks are taken several times a second, without stopping the processes
)

// Profile has the time of the sessions by stack and wait event, in the seconds after the incident was found. The time of idle
// sessions and of background processes that wait for work is not in it.
type Profile struct {
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"`
	Method  string    `json:"method"`
	// Cost is the processor time of the worker during the profile. Stopped means that the profile ended early because it cost too
	// much.
	Cost    float64 `json:"processor_seconds"`
	Stopped bool    `json:"stopped_by_cost,omitempty"`
	// Stacks are the stacks with the most time. LeftOut is the number of further stacks.
	Stacks  []ProfileStack `json:"stacks"`
	LeftOut int            `json:"stacks_left_out,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// ProfileStack is the time of all processes with the same stack and wait.
type ProfileStack struct {
	Seconds   float64  `json:"seconds"`
	Processes int      `json:"processes"`
	Type      string   `json:"backend_type,omitempty"`
	Wait      string   `json:"wait,omitempty"` // class:event; empty: no wait
	Frames    []string `json:"frames"`         // the innermost first; empty: no stack was taken
}

// TakeProfile profiles the server until the time in the parameter took has passed, or until ctx ends. It uses BPF programs if this
// process may load them. Otherwise it takes stacks without stopping a process, beginning with the processes in the parameter first.
// An error is in Profile.Error.
func TakeProfile(ctx context.Context, src *Source, first []int32, took time.Duration) *Profile {
	p := &Profile{Since: time.Now().UTC().Round(time.Microsecond), Method: ByKernel, Stacks: []ProfileStack{}}
	if src.Capturer == nil {
		p.Error = "no stacks are taken"
		return p
	}
	groups := groups{}
	used := processTime()
	found, summary, err := clusterprofile.Collect(ctx, clusterprofile.Options{
		Cluster: &src.Server, Capturer: src.Capturer, Mode: clusterprofile.Wall, Rate: profileRate, Duration: took, CostLimit: profileCost,
	})
	switch {
	case err == nil:
		groups.fold(found)
		p.Stopped = summary.StoppedByCost
	case summary == nil && ctx.Err() == nil: // the BPF programs could not be loaded
		p.Method = BySamples
		if err := p.sample(ctx, src, first, took, groups, time.Duration(float64(took)*sampleCost)); err != nil {
			p.Error = err.Error()
		}
	default:
		p.Error = err.Error()
	}
	p.Cost = (processTime() - used).Seconds()
	p.Seconds = time.Since(p.Since).Seconds()
	if summary != nil {
		p.Seconds = summary.Took.Seconds()
	}
	p.Stacks, p.LeftOut = groups.list()
	return p
}

func processTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// groups adds up times by backend type, wait and stack.
type groups map[string]*group

type group struct {
	ProfileStack

	pids map[string]bool
}

// add adds the time in the parameter took to the group of a process. Beyond maxProfileGroups groups, new stacks are added without
// frames.
func (g groups) add(pid, kind, wait string, frames []string, took time.Duration) {
	key := func() string { return strings.Join(append([]string{kind, wait}, frames...), "\x00") }
	k := g[key()]
	if k == nil && len(g) >= maxProfileGroups {
		frames = nil
		k = g[key()]
	}
	if k == nil {
		k = &group{ProfileStack: ProfileStack{Type: kind, Wait: wait, Frames: frames}, pids: map[string]bool{}}
		g[key()] = k
	}
	k.Seconds += took.Seconds()
	k.pids[pid] = true
}

// list returns the maxProfileStacks groups with the most time, and the number of the other groups.
func (g groups) list() (list []ProfileStack, leftOut int) {
	list = []ProfileStack{}
	for _, k := range g {
		k.Processes = len(k.pids)
		k.Frames = slices.Clone(k.Frames)
		if k.Frames == nil {
			k.Frames = []string{}
		}
		list = append(list, k.ProfileStack)
	}
	slices.SortFunc(list, func(a, b ProfileStack) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Wait, b.Wait), slices.Compare(a.Frames, b.Frames))
	})
	n := min(len(list), maxProfileStacks)
	return list[:n], len(list) - n
}

// fold adds the samples of a profile of clusterprofile.
func (g groups) fold(p *profile.Profile) {
	at := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == string(clusterprofile.Wall) })
	if at < 0 {
		return
	}
	for _, s := range p.Sample {
		label := func(name string) string { return strings.Join(s.Label[name], "") }
		wait := label(clusterprofile.LabelWaitType)
		if wait != "" {
			wait += ":" + label(clusterprofile.LabelWaitEvent)
		}
		if idle(label(clusterprofile.LabelState), wait) {
			continue
		}
		var frames []string
		for _, l := range s.Location {
			for _, call := range l.Line {
				if call.Function != nil && len(frames) < maxFrames {
					frames = append(frames, frameOf(l, call.Function.Name))
				}
			}
		}
		g.add(label(clusterprofile.LabelPID), label(clusterprofile.LabelBackendType), wait, frames, time.Duration(s.Value[at]))
	}
}

// frameOf returns the name of a frame, with the same prefix as in stacks if the function is in code compiled at run time.
func frameOf(l *profile.Location, name string) string {
	switch {
	case l.Address == 0: // not code, such as a function of a procedural language
	case l.Mapping != nil && (l.Mapping.BuildID != "" || strings.HasPrefix(l.Mapping.File, "/")): // in an image
	case !strings.HasPrefix(name, "["): // "[anon]+0x5a" has no name
		return recorder.Generated + bounded(name)
	}
	return bounded(name)
}

const maxFrames = 128

// idle reports whether a process is idle, so that its time is not in the profile.
func idle(state, wait string) bool {
	return state == "idle" || strings.HasPrefix(wait, "Activity:")
}

// sampled has the last stack of a process, and the number of context switches at that time.
type sampled struct {
	switches uint64
	frames   []string
	at       time.Time // the last time at which the process still had this stack
}

// sample takes the stacks of the processes every samplePause, until the time in the parameter took has passed. It stops earlier,
// and sets Stopped, when it has used the allowed processor time. It does not take the stack of a process again if the process has
// not run since its last stack.
func (p *Profile) sample(ctx context.Context, src *Source, first []int32, took time.Duration, g groups, allowed time.Duration) error {
	r, err := state.Open(src.Server)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, took)
	defer cancel()
	known := map[int]*sampled{}
	used, last := processTime(), time.Now()
	ticker := time.NewTicker(samplePause)
	defer ticker.Stop()
	for {
		m, err := r.Read(state.Options{})
		if err != nil {
			return err
		}
		now := time.Now()
		p.look(ctx, src, first, m, known, func() bool { return processTime()-used > allowed })
		if p.Stopped {
			return nil
		}
		for i := range m.Sessions {
			s := &m.Sessions[i]
			if wait := waitName(s); !idle(s.State, wait) {
				var frames []string
				if k := known[s.PID]; k != nil && !k.at.Before(now) {
					frames = k.frames
				}
				g.add(strconv.Itoa(s.PID), s.Type, wait, frames, now.Sub(last))
			}
		}
		last = now
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func waitName(s *moment.Session) string {
	if s.Wait == nil || s.Wait.Type == "" {
		return ""
	}
	return s.Wait.Type + ":" + s.Wait.Event
}

// look takes the stacks of the processes that have run since their last stack, at most for samplePause. It begins with the
// processes in the parameter first, and continues with the processes with the oldest stacks.
func (p *Profile) look(ctx context.Context, src *Source, first []int32, m *moment.Moment, known map[int]*sampled, costly func() bool) {
	ctx, cancel := context.WithTimeout(ctx, samplePause)
	defer cancel()
	var list []*moment.Session
	present := map[int]*sampled{}
	now := time.Now()
	for i := range m.Sessions {
		s := &m.Sessions[i]
		if idle(s.State, waitName(s)) {
			continue
		}
		k := known[s.PID]
		if k == nil {
			k = &sampled{}
		}
		present[s.PID] = k
		st, err := process.ReadStatus(s.PID)
		if err != nil {
			continue
		}
		switches := st.VoluntarySwitches + st.InvoluntarySwitches
		if k.frames != nil && k.switches == switches && (st.State == 'S' || st.State == 'D') {
			k.at = now // the process has not run, so the stack is still current
			continue
		}
		k.switches = switches
		list = append(list, s)
	}
	clear(known)
	maps.Copy(known, present)
	slices.SortStableFunc(list, func(a, b *moment.Session) int {
		return cmp.Or(cmp.Compare(rank(first, int32(a.ServerPID)), rank(first, int32(b.ServerPID))), known[a.PID].at.Compare(known[b.PID].at))
	})
	for _, s := range list {
		if p.Stopped = costly(); p.Stopped || ctx.Err() != nil {
			return
		}
		k := known[s.PID]
		k.frames = nil
		if stack, err := recorder.TakeStack(ctx, src.Capturer, src.Server, s.ServerPID, sampleLimit); err == nil {
			k.frames, k.at = stack.Frames, time.Now()
		}
	}
}
