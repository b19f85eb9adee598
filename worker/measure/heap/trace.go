package heap

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/measure/allocs"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// Path is a call path that has allocated memory, with its sums.
type Path struct {
	allocs.Sums

	// Stack is the stack of the path; nil: not recorded.
	Stack *backtrace.Thread
}

// Report is the result of a trace.
type Report struct {
	allocs.Result

	PID       int
	Allocator *Allocator
	Started   time.Time
	// Paths are the call paths. The path with the most live bytes (allocated and not freed yet) is the first.
	Paths []*Path
	// Live has the sizes of the blocks not freed yet, by path, if the options request the blocks.
	Live map[*Path][]uint64
}

// Run traces the allocations of a process. It ends when ctx or the process ends, or when the trace costs too much: see
// allocs.Tracer. None of these is an error. It calls the callback report several times a second. The errors are those of
// allocs.Open and allocs.Tracer.Run.
func Run(
	ctx context.Context, c *capture.Capturer, target process.Target, a *Allocator, o allocs.Options,
	report func(*allocs.Progress),
) (*Report, error) {
	t := a.target
	t.Process = target
	tracer, err := allocs.Open(t, o)
	if err != nil {
		return nil, err
	}
	defer tracer.Close()
	n := namer{
		stacks:   c.StackNamer(capture.StackNamerOptions{}),
		byNumber: make(map[uint64]*Path), byStack: make(map[string]*Path),
	}
	r := &Report{PID: target.PID, Allocator: a, Started: time.Now()}
	result, err := tracer.Run(ctx, n.take, report)
	if err != nil {
		return nil, err
	}
	r.Result = *result
	r.add(&n)
	return r, nil
}

// namer names the stacks of call paths, and merges equal ones.
type namer struct {
	stacks   *capture.StackNamer
	byNumber map[uint64]*Path
	byStack  map[string]*Path
}

// take names new stacks, and records the path of each by its number.
func (n *namer) take(list []allocs.Stack) error {
	snapshots := make([]*snapshot.Snapshot, len(list))
	for i := range list {
		snapshots[i] = list[i].Snapshot
	}
	for i, stack := range n.stacks.NameSnapshots(snapshots) {
		key := keyOf(stack)
		p := n.byStack[key]
		if p == nil {
			p = &Path{Stack: stack}
			n.byStack[key] = p
		}
		n.byNumber[list[i].Number] = p
	}
	return nil
}

// keyOf returns a key that is equal for stacks of the same call path: the addresses of the frames, and whether the stack is
// complete.
func keyOf(t *backtrace.Thread) string {
	key := []byte{0}
	if t.Whole {
		key[0] = 1
	}
	for i := range t.Frames {
		key = binary.NativeEndian.AppendUint64(key, t.Frames[i].Address)
	}
	return string(key)
}

// add fills Paths and Live. Stacks that were merged to one path are added up.
func (r *Report) add(n *namer) {
	lost := &Path{}
	pathOf := func(number uint64) *Path {
		if p := n.byNumber[number]; p != nil {
			return p
		}
		return lost
	}
	seen := make(map[*Path]bool)
	for number, s := range r.Result.Paths {
		p := pathOf(number)
		p.Objects, p.Bytes = p.Objects+s.Objects, p.Bytes+s.Bytes
		p.LiveObjects, p.LiveBytes = p.LiveObjects+s.LiveObjects, p.LiveBytes+s.LiveBytes
		if !seen[p] {
			seen[p] = true
			r.Paths = append(r.Paths, p)
		}
	}
	slices.SortFunc(r.Paths, func(a, b *Path) int {
		return cmp.Or(cmp.Compare(b.LiveBytes, a.LiveBytes), cmp.Compare(b.Bytes, a.Bytes), compareStacks(a.Stack, b.Stack))
	})
	r.Live = make(map[*Path][]uint64)
	for _, b := range r.Blocks {
		p := pathOf(b.Path)
		r.Live[p] = append(r.Live[p], b.Size)
	}
}

func compareStacks(a, b *backtrace.Thread) int {
	if a == nil || b == nil {
		return 0
	}
	return cmp.Compare(keyOf(a), keyOf(b))
}

// Total returns the sums of all paths.
func (r *Report) Total() (s allocs.Sums) {
	for _, p := range r.Paths {
		s.Objects, s.Bytes = s.Objects+p.Objects, s.Bytes+p.Bytes
		s.LiveObjects, s.LiveBytes = s.LiveObjects+p.LiveObjects, s.LiveBytes+p.LiveBytes
	}
	return s
}
