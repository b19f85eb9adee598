package selfnames

import (
	"maps"
	"slices"
)

// group is a function with all of its parts, including the parts that the compiler has moved elsewhere. Parts are
// indexes of code.fns.
type group struct {
	// root is the part that begins with the function's entry; -1: unknown.
	root  int32
	parts []int32
	// whole is set if no part is opaque.
	whole bool
}

// forest joins the parts of functions into trees, one for each group. It is a union-find structure: each element is the
// index of another part of the same tree, or of itself.
type forest []int32

func (t forest) find(i int32) int32 {
	for t[i] != i {
		t[i] = t[t[i]]
		i = t[i]
	}
	return i
}

func (t forest) join(a, b int32) {
	if a, b = t.find(a), t.find(b); a != b {
		t[max(a, b)] = min(a, b)
	}
}

// group joins the parts of functions by three kinds of jumps:
//
//   - into the middle of another part
//   - to the start of a part that begins inside a frame (see plain)
//   - a conditional jump to the start of a part that nothing calls and to which no other function jumps
//
// Jumps of the third kind join parts only if parts that begin inside a frame are near. Compilers put such parts
// together, while clang makes conditional tail calls. Any other jump to the start of a function may be a tail call.
func (c *code) group() []group {
	trees := make(forest, len(c.fns))
	for i := range trees {
		trees[i] = int32(i)
	}
	weak := make(map[int32]arrivals)
	framed := make([]bool, len(c.fns))
	for _, j := range c.jumps {
		to := c.at(j.to)
		if to < 0 || to == j.fn {
			continue
		}
		f := &c.fns[to]
		switch {
		case f.start != j.to:
			trees.join(j.fn, to)
		case f.name == "" && !c.plain(to):
			framed[to] = true
			trees.join(j.fn, to)
		case f.name != "" || f.called:
		default:
			const enough = 64
			w := weak[to]
			if w.plain = w.plain || !j.conditional; len(w.from) < enough {
				w.from = append(w.from, j.fn)
			}
			weak[to] = w
		}
	}
	for to, w := range weak {
		w.plain = w.plain || !amongParts(framed, int(to))
		weak[to] = w
	}
	c.joinWeak(trees, weak)
	return c.groups(trees)
}

// amongParts reports whether at least two parts that begin inside a frame are near function i.
func amongParts(framed []bool, i int) bool {
	const near, enough = 4, 2
	n := 0
	for _, part := range framed[max(i-near, 0):min(i+near+1, len(framed))] {
		if part {
			n++
		}
	}
	return n >= enough
}

// arrivals are the functions that jump to the start of a part, which may itself be the entry of a function. plain is
// set if one of these jumps may be a tail call.
type arrivals struct {
	from  []int32
	plain bool
}

// joinWeak joins each part in weak to a function if only this function jumps to the part, and none of the jumps may be
// a tail call. A part to which several functions jump is a function itself.
func (c *code) joinWeak(trees forest, weak map[int32]arrivals) {
	targets := slices.Sorted(maps.Keys(weak))
	const rounds = 4 // a part may jump to another part
	for range rounds {
		for _, to := range targets {
			if others := trees.others(weak[to].from, to); len(others) == 1 && !weak[to].plain {
				trees.join(others[0], to)
			}
		}
	}
	for _, to := range targets {
		others := trees.others(weak[to].from, to)
		if len(others) > 1 && len(others) == len(trees.others(weak[to].from, -1)) {
			c.fns[to].called = true
		}
	}
}

// others returns the trees of functions, except for the tree that contains the function in the parameter without. If
// without is -1, it returns all trees.
func (t forest) others(fns []int32, without int32) (found []int32) {
	if without >= 0 {
		without = t.find(without)
	}
	for _, fn := range fns {
		if tree := t.find(fn); tree != without && !slices.Contains(found, tree) {
			found = append(found, tree)
		}
	}
	return found
}

// groups makes a group of each tree. A tree with two entries is not one function, so each of its parts becomes a
// separate group, whose field whole is not set.
func (c *code) groups(trees forest) []group {
	index := make([]int, len(trees)) // place in all plus one; 0: none yet
	room := make([]int32, len(trees))
	all := make([]group, 0, len(trees))
	for i := range c.fns {
		tree := trees.find(int32(i))
		if index[tree] == 0 {
			all = append(all, group{root: -1})
			index[tree] = len(all)
		}
		g := &all[index[tree]-1]
		if g.parts == nil { // nearly all groups have one part, so they need no allocation of their own
			g.parts = room[i : i : i+1]
		}
		g.parts = append(g.parts, int32(i))
	}
	out := make([]group, 0, len(all))
	for _, g := range all {
		entries := 0
		g.whole = true
		for _, p := range g.parts {
			if c.fns[p].opaque {
				g.whole = false
			}
			if c.fns[p].name != "" || c.fns[p].called && c.plain(p) {
				g.root = p
				entries++
			}
		}
		if entries < 2 {
			out = append(out, g)
			continue
		}
		for _, p := range g.parts {
			alone := group{root: -1, parts: []int32{p}}
			if c.fns[p].name != "" || c.fns[p].called && c.plain(p) {
				alone.root = p
			}
			out = append(out, alone)
		}
	}
	return out
}
