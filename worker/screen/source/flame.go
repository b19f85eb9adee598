package source

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// Flamer is a source that has call stacks of active sessions.
type Flamer interface {
	// Flame returns the stacks of a span as a tree. A live source takes stacks only for some seconds after a call of Flame.
	Flame(ctx context.Context, q Query, side Side) (*Flame, error)
}

// Side selects stacks by the state of their sessions.
type Side string

// The sides. A session without a wait event is on the CPU.
const (
	Both   Side = "both"
	OnCPU  Side = "on-cpu"
	OffCPU Side = "off-cpu"
)

// Sides returns the sides in the order of the screens.
func Sides() []Side { return []Side{Both, OnCPU, OffCPU} }

func (s Side) check() error {
	if !slices.Contains(Sides(), s) {
		return errors.New("the side must be both, on-cpu or off-cpu")
	}
	return nil
}

// Flame is a tree of functions. Its figures are estimates from samples.
type Flame struct {
	Span

	Side Side `json:"side"`
	// Nodes are in the order of the screen: each node is followed by the nodes below it. The first one stands for all stacks.
	Nodes []FlameNode `json:"nodes"`
	// OnCPU and OffCPU are the mean active sessions of all stacks that pass the filter, on both sides.
	OnCPU  float64 `json:"on_cpu_sessions"`
	OffCPU float64 `json:"off_cpu_sessions"`
	// Sampled and Recorded are the numbers of stacks of this side that this program and the recorder have taken.
	Sampled  int `json:"sampled_stacks"`
	Recorded int `json:"recorded_stacks"`
	// Seconds is the time of the span for which there are stacks.
	Seconds float64 `json:"stack_seconds"`
	// LeftOut is the number of nodes that are too small to be shown.
	LeftOut int `json:"nodes_left_out,omitempty"`
}

// FlameNode is a function, or a chain of functions of which each calls only the next one.
type FlameNode struct {
	// Depth is 0 for the first node. A node is at most one level below the node before it.
	Depth int `json:"depth"`
	// Functions are a chain, the outermost first. The first node has no functions. The name of a function of a procedural
	// language begins with "pl:".
	Functions []string `json:"functions"`
	// Active is the mean number of active sessions. Self is the part of Active without the nodes below this node. OnCPU is the
	// part of Active without a wait event.
	Active float64 `json:"active_sessions"`
	Self   float64 `json:"self_sessions"`
	OnCPU  float64 `json:"on_cpu_sessions"`
}

// Bounds of the stacks in memory, and of an answer.
const (
	maxStackSets   = 2 * 3600
	maxStacks      = 6000 // different stacks
	maxStackDepth  = 160
	maxFlameNodes  = 1500
	maxFlameDepth  = 100
	smallestFlame  = 0.001 // smallest node that is shown, as a part of all stacks
	firstStackWait = 2 * time.Second
	maxStackFrames = 400_000
	maxStackRows   = 400_000
)

// noFlame is the name of the node for sessions without a stack.
const noFlame = "[no stack was taken]"

// stackSet has the active sessions at one time, and the stacks of some of these sessions.
type stackSet struct {
	at     time.Time
	period time.Duration // length of the time before at for which the set stands
	kind   Kind
	rows   []stackRow
}

// stackRow is an active session and its stack, as an index of stackLog.stacks; -1: no stack was taken.
type stackRow struct {
	row   row
	stack int32
}

// stackLog has the newest sets of stacks, in ascending order of time.
type stackLog struct {
	sets   []stackSet
	stacks [][]uint32       // functions as numbers of names, the outermost first
	index  map[string]int32 // of stacks, by their numbers as bytes
	frames int              // of all stacks
	rows   int              // of all sets
	names  names
}

// takenStack is an active session, and its frames from the innermost outwards; nil: the frames are not known.
type takenStack struct {
	session *moment.Session
	frames  []string
}

// addStacks stores the active sessions of one time with the stacks of some of these sessions. The set stands for the time
// since the set before it, but at most for the time longest.
func (p *past) addStacks(at time.Time, kind Kind, longest time.Duration, list []takenStack) {
	k := &p.stacks
	period := longest
	for n := len(k.sets); n > 0; n = len(k.sets) {
		before := k.sets[n-1].at
		if at.After(before) {
			period = min(longest, at.Sub(before))
			break
		}
		k.rows -= len(k.sets[n-1].rows)
		k.sets = k.sets[:n-1] // the clock was set back: remove later sets, because sets must be in ascending order of time
	}
	if !slices.ContainsFunc(list, func(t takenStack) bool { return len(t.frames) > 0 }) {
		return
	}
	if len(k.stacks) > maxStacks || k.frames > maxStackFrames || len(k.sets) >= maxStackSets || k.rows+len(list) > maxStackRows {
		k.keep(len(k.sets) / 2)
	}
	set := stackSet{at: at, period: period, kind: kind}
	for _, t := range list {
		class := ClassOf(t.session)
		if class == "" {
			continue
		}
		r := stackRow{p.knownRow(t.session).row, -1}
		r.row.class = int8(slices.Index(Classes(), class))
		if len(t.frames) > 0 {
			r.stack = k.number(t.frames)
		}
		set.rows = append(set.rows, r)
	}
	k.sets, k.rows = append(k.sets, set), k.rows+len(set.rows)
}

// number returns the index of a stack, which it adds if it is new.
func (k *stackLog) number(frames []string) int32 {
	frames = frames[max(0, len(frames)-maxStackDepth):] // without the innermost frames: the tree begins with the outermost
	stack, key := make([]uint32, 0, len(frames)), make([]byte, 0, 4*len(frames))
	for _, name := range slices.Backward(frames) {
		n := k.names.number(nameOfFrame(name), "")
		stack, key = append(stack, n), append(key, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	if i, ok := k.index[string(key)]; ok {
		return i
	}
	if k.index == nil {
		k.index = map[string]int32{}
	}
	i := int32(len(k.stacks))
	k.stacks, k.index[string(key)] = append(k.stacks, stack), i
	k.frames += len(stack)
	return i
}

// nameOfFrame returns the name of a function. For an address without a name, it returns the module in brackets, so that all
// unnamed addresses of a module become one node.
func nameOfFrame(name string) string {
	if module, _, ok := strings.Cut(name, "+0x"); ok && !strings.HasPrefix(name, "pl:") {
		return "[" + module + "]"
	}
	return bounded(cmp.Or(name, "[unknown]"))
}

// keep removes the oldest sets (their number is drop), and the stacks that only these sets have.
func (k *stackLog) keep(drop int) {
	old := *k
	*k = stackLog{sets: slices.Clone(old.sets[drop:])}
	again := map[int32]int32{}
	for i := range k.sets {
		for j := range k.sets[i].rows {
			r := &k.sets[i].rows[j]
			if k.rows++; r.stack < 0 {
				continue
			}
			to, ok := again[r.stack]
			if !ok {
				frames := make([]string, 0, len(old.stacks[r.stack]))
				for _, n := range slices.Backward(old.stacks[r.stack]) {
					frames = append(frames, old.names.get(n).key)
				}
				to = k.number(frames)
				again[r.stack] = to
			}
			r.stack = to
		}
	}
}

// weight is the time for which stacks stand, in seconds, summed over sessions: those with a wait event (off), and those
// without (on).
type weight struct{ on, off float64 }

func (w *weight) sum() float64 { return w.on + w.off }

// flame is Flamer.Flame.
func (p *past) flame(q Query, side Side) *Flame {
	f := &Flame{Span: q.Span, Side: side, Nodes: []FlameNode{}}
	m, k := p.matcher(q.Filter), &p.stacks
	weights := make([]weight, len(k.stacks))
	all, none := weight{}, weight{}
	first, _ := slices.BinarySearchFunc(k.sets, q.From, func(x stackSet, t time.Time) int { return x.at.Compare(t) })
	for i := first; i < len(k.sets); i++ {
		x := &k.sets[i]
		begin := x.at.Add(-x.period)
		if !begin.Before(q.To) {
			break
		}
		part := earlier(x.at, q.To).Sub(later(begin, q.From)).Seconds()
		if part <= 0 {
			continue
		}
		f.Seconds += part
		// The sessions with a stack also stand for the sessions of their wait class without a stack.
		sessions, stacks := make([]int, len(Classes())), make([]int, len(Classes()))
		matching := x.rows[:0:0]
		for j := range x.rows {
			if r := &x.rows[j]; m.match(&r.row) {
				matching = append(matching, *r)
				if sessions[r.row.class]++; r.stack >= 0 {
					stacks[r.row.class]++
				}
			}
		}
		for _, r := range matching {
			on := Classes()[r.row.class] == CPU
			all.add(on, part)
			switch n := stacks[r.row.class]; {
			case side == OnCPU && !on || side == OffCPU && on:
				continue
			case n == 0:
				none.add(on, part)
				continue
			case r.stack < 0:
				continue
			default:
				weights[r.stack].add(on, part*float64(sessions[r.row.class])/float64(n))
			}
			if x.kind == KindRecorded {
				f.Recorded++
			} else {
				f.Sampled++
			}
		}
	}
	if f.Seconds == 0 {
		return f
	}
	f.OnCPU, f.OffCPU = all.on/f.Seconds, all.off/f.Seconds
	f.tree(k, weights, none)
	return f
}

func (w *weight) add(on bool, n float64) {
	if on {
		w.on += n
	} else {
		w.off += n
	}
}

// branch is a function in a tree of stacks. weight includes the children, self does not.
type branch struct {
	name     uint32
	weight   weight
	self     float64
	children map[uint32]*branch
}

// tree makes f.Nodes from the weight of each stack. none is the weight of sessions without a stack.
func (f *Flame) tree(k *stackLog, weights []weight, none weight) {
	root := &branch{}
	if none.sum() > 0 {
		name := k.names.number(noFlame, "")
		root.weight = none
		root.children = map[uint32]*branch{name: {name: name, weight: none, self: none.sum()}}
	}
	for i, w := range weights {
		if w.sum() == 0 {
			continue
		}
		at := root
		at.weight.on, at.weight.off = at.weight.on+w.on, at.weight.off+w.off
		for _, name := range k.stacks[i] {
			next := at.children[name]
			if next == nil {
				if at.children == nil {
					at.children = map[uint32]*branch{}
				}
				next = &branch{name: name}
				at.children[name] = next
			}
			at = next
			at.weight.on, at.weight.off = at.weight.on+w.on, at.weight.off+w.off
		}
		at.self += w.sum()
	}
	if root.weight.sum() > 0 {
		f.add(k, root, 0, root.weight.sum()*smallestFlame)
	}
}

// add adds a node and the nodes below it, the heaviest first. Nodes whose weight is less than the parameter least are left
// out.
func (f *Flame) add(k *stackLog, b *branch, depth int, least float64) {
	n := FlameNode{Depth: depth, Functions: []string{}}
	if depth > 0 {
		n.Functions = append(n.Functions, k.names.get(b.name).key)
		for len(b.children) == 1 && b.self == 0 {
			for _, next := range b.children {
				b = next
			}
			n.Functions = append(n.Functions, k.names.get(b.name).key)
		}
	}
	n.Active, n.Self, n.OnCPU = b.weight.sum()/f.Seconds, b.self/f.Seconds, b.weight.on/f.Seconds
	f.Nodes = append(f.Nodes, n)
	list := make([]*branch, 0, len(b.children))
	for _, c := range b.children {
		list = append(list, c)
	}
	slices.SortFunc(list, func(x, y *branch) int {
		return cmp.Or(cmp.Compare(y.weight.sum(), x.weight.sum()), cmp.Compare(k.names.get(x.name).key, k.names.get(y.name).key))
	})
	for _, c := range list {
		if c.weight.sum() < least || len(f.Nodes) >= maxFlameNodes || depth >= maxFlameDepth {
			f.LeftOut++
			continue
		}
		f.add(k, c, depth+1, least)
	}
}

// Flame implements Flamer.Flame. The first call takes stacks, and waits at most firstStackWait for them.
func (l *Live) Flame(ctx context.Context, q Query, side Side) (*Flame, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	if err := side.check(); err != nil {
		return nil, err
	}
	if err := l.nameStacks(ctx); err != nil {
		return nil, err
	}
	if ended := l.firstStacks(); ended != nil {
		late := time.NewTimer(firstStackWait)
		defer late.Stop()
		select {
		case <-ended:
		case <-late.C:
		case <-ctx.Done():
		}
		q.To = later(q.To, time.Now()) // so that the span includes the new stacks
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.o.Capturer == nil && len(l.past.stacks.sets) == 0 {
		return nil, errors.New("this source takes no stacks")
	}
	l.stacks.wanted = time.Now()
	return l.past.flame(q, side), nil
}

// firstStacks starts a round of stacks (see stacks.take) if there is a sample, no reader has requested stacks during the last
// watchStacks, and the recorder takes no stacks. It returns a channel that is closed at the end of the round; nil: no round
// was started.
func (l *Live) firstStacks() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil || l.wantsStacks() || time.Since(l.following.stacks) < time.Minute {
		return nil
	}
	l.stacks.wanted = time.Now()
	l.stacks.take(l, l.last)
	if !l.stacks.busy {
		return nil
	}
	return l.stacks.ended
}

// Flame implements Flamer.Flame. It always fails, because a flame graph shows names of functions.
func (Nameless) Flame(context.Context, Query, Side) (*Flame, error) { return nil, ErrNeedsOperator }
