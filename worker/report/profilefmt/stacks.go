package profilefmt

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/unwind/budget"
)

// Limits of a profile that is printed in a format other than pprof.
const (
	// maxNodes bounds the nodes of the tree of stacks of a page. A browser can open a page with this number of nodes, but slowly.
	maxNodes = 5_000_000
	// maxFrames bounds the number of frames of all different stacks together.
	maxFrames = 64_000_000
	// maxWork bounds the number of frames of all samples together, see checkWork.
	maxWork = 512_000_000
	// maxText bounds the bytes of all different folded stacks together.
	maxText = 1 << 30
	// nodeBytes is the memory of a node in bytes: its parent and its frame, in lists that grow by doubling, and its number.
	nodeBytes = 40
)

var errTooLarge = errors.New("profile has too many different stacks for a format other than pprof")

// checkWork returns errTooLarge if the stacks of a profile are too long, all together. A format may print the stack of a sample
// several times; times returns how often.
func checkWork(p *profile.Profile, times func(*profile.Sample) int) error {
	work := 0
	for _, s := range p.Sample {
		depth := 0
		for _, loc := range s.Location {
			if depth += max(len(loc.Line), 1); depth > maxDepth {
				break
			}
		}
		if work += depth * times(s); work > maxWork {
			return errTooLarge
		}
	}
	return nil
}

// A function has the common properties of frames with the same name, module and file.
type function struct {
	name, file string
	// module is an index of table.modules; 0: not known.
	module int
	// merged is set for a function without a symbol: the index in table.functions of the function that stands for all
	// frames of the module without a symbol. It is -1 if the function has a name.
	merged int
}

type module struct{ name, path, buildID string }

// A table numbers the functions and modules of a profile by their index. The number of a frame is twice the number of its function,
// plus 1 if the call was inlined.
type table struct {
	functions []function
	modules   []module

	byFunction map[function]int
	byModule   map[module]int
	byLocation map[*profile.Location][]int32 // numbers of the frames, innermost first
	names      names
}

func newTable(memory *budget.Budget) *table {
	t := &table{
		names:      names{memory: memory},
		byFunction: make(map[function]int),
		byModule:   make(map[module]int),
		byLocation: make(map[*profile.Location][]int32),
	}
	t.module(module{})
	return t
}

func (t *table) module(m module) int {
	i, ok := t.byModule[m]
	if !ok {
		t.names.charge(mappingBytes)
		i = len(t.modules)
		t.modules = append(t.modules, m)
		t.byModule[m] = i
	}
	return i
}

func (t *table) function(f function) int {
	i, ok := t.byFunction[f]
	if !ok {
		t.names.charge(functionBytes)
		i = len(t.functions)
		t.functions = append(t.functions, f)
		t.byFunction[f] = i
	}
	return i
}

// frame returns the number of a frame in module m.
func (t *table) frame(f *frame, m int) int32 {
	merged := -1
	if f.unnamed {
		merged = t.function(function{name: t.names.keep(f.merged()), module: m, merged: -1})
	}
	n := 2 * t.function(function{
		name: t.names.keep(shown(f.name)), file: t.names.keep(shown(f.file)), module: m, merged: merged,
	})
	if f.inlined {
		n++
	}
	return int32(n)
}

// location returns the numbers of the frames of a location.
func (t *table) location(loc *profile.Location) []int32 {
	if list, ok := t.byLocation[loc]; ok {
		return list
	}
	m := 0
	if loc.Mapping != nil && loc.Mapping.File != "" {
		m = t.module(module{
			t.names.keep(base(loc.Mapping.File)), t.names.keep(shown(loc.Mapping.File)),
			t.names.keep(shown(loc.Mapping.BuildID)),
		})
	}
	frames := locationFrames(nil, loc)
	t.names.charge(textBytes + 4*len(frames))
	list := make([]int32, len(frames))
	for i := range frames {
		list[i] = t.frame(&frames[i], m)
	}
	t.byLocation[loc] = list
	return list
}

// stack returns the numbers of the frames of a sample, outermost first. It reuses buf. If the stack is too deep, the frame "..."
// replaces the outermost frames.
func (t *table) stack(buf []int32, s *profile.Sample) []int32 {
	buf = buf[:0]
	for _, loc := range s.Location {
		buf = append(buf, t.location(loc)...)
		if len(buf) > maxDepth {
			buf = append(buf[:maxDepth], int32(2*t.function(function{name: cutStack, merged: -1})))
			break
		}
	}
	slices.Reverse(buf)
	return buf
}

// A weighted is a stack with the sums of its samples' values.
type weighted struct {
	stack  []int32 // numbers of the frames, outermost first
	labels int     // the caller's number for the labels
	values []int64 // by sample type
}

// sum adds up the samples with equal stacks and equal labels. It leaves out samples whose values are all 0. The
// function labels returns a number for the labels of a sample. The result is sorted, so that stacks with common outer
// frames are neighbours.
func (t *table) sum(p *profile.Profile, labels func(*profile.Sample) int) ([]weighted, error) {
	type place struct{ stack, labels int }
	var (
		stacks  [][]int32
		byStack = make(map[string]int)
		byPlace = make(map[place]int)
		list    []weighted
		buf     []int32
		key     []byte
		kept    int
	)
	for _, s := range p.Sample {
		if !slices.ContainsFunc(s.Value, func(v int64) bool { return v != 0 }) {
			continue
		}
		buf = t.stack(buf, s)
		key = key[:0]
		for _, n := range buf {
			key = binary.AppendUvarint(key, uint64(n))
		}
		number, ok := byStack[string(key)]
		if !ok {
			number = len(stacks)
			byStack[string(key)] = number
			stacks = append(stacks, slices.Clone(buf))
			if kept += len(buf); kept > maxFrames {
				return nil, errTooLarge
			}
			t.names.charge(len(key) + 4*len(buf) + 2*textBytes)
		}
		at := place{number, labels(s)}
		if t.names.err != nil {
			return nil, t.names.err
		}
		i, ok := byPlace[at]
		if !ok {
			i = len(list)
			byPlace[at] = i
			t.names.charge(sampleBytes + 8*len(p.SampleType))
			list = append(list, weighted{stacks[number], at.labels, make([]int64, len(p.SampleType))})
		}
		for j, v := range s.Value {
			list[i].values[j] = plus(list[i].values[j], v)
		}
	}
	slices.SortFunc(list, func(a, b weighted) int {
		return cmp.Or(slices.Compare(a.stack, b.stack), cmp.Compare(a.labels, b.labels))
	})
	return list, nil
}

// A tree has sorted stacks, and stores their common outer frames once. Node 0 is the root, which has no frame. Nodes are in depth
// first order: a node comes after its parent, and directly after all nodes below its previous sibling.
type tree struct {
	parents []int
	frames  []int32
}

// newTree makes a tree of the stacks of a sorted list. It also returns the node of each stack's innermost frame.
func newTree(list []weighted, memory *budget.Budget) (tr tree, nodes []int, err error) {
	tr = tree{parents: []int{0}, frames: []int32{-1}}
	nodes = make([]int, len(list))
	var last []int32 // the previous stack
	var path []int   // the nodes of the previous stack
	c := charger{memory: memory}
	for i := range list {
		stack := list[i].stack
		same := 0
		for same < len(stack) && same < len(last) && stack[same] == last[same] {
			same++
		}
		path = path[:same]
		for _, frame := range stack[same:] {
			parent := 0
			if len(path) > 0 {
				parent = path[len(path)-1]
			}
			path = append(path, len(tr.frames))
			tr.parents = append(tr.parents, parent)
			tr.frames = append(tr.frames, frame)
		}
		if len(tr.frames) > maxNodes {
			return tree{}, nil, errTooLarge
		}
		if err := c.charge(int64(nodeBytes*(1+len(stack)-same)), "stacks"); err != nil {
			return tree{}, nil, err
		}
		if len(path) > 0 {
			nodes[i] = path[len(path)-1]
		}
		last = stack
	}
	return tr, nodes, c.flush("stacks")
}
