package locks

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Node is a process, a lock group or a prepared transaction in a forest of waits; see Forest.
type Node struct {
	// PID is the process id of the process or of its group's leader, and 0 for a prepared transaction.
	PID int    `json:"pid"`
	XID uint32 `json:"xid,omitempty"`
	GID string `json:"gid,omitempty"`
	// Waits are the waits of the process, or of all processes of its group. A root has no waits, unless its blockers
	// are unknown or it is in a deadlock.
	Waits []Wait `json:"waits,omitempty"`
	// Cycle means that the node waits, directly or not, for itself. One node of each cycle is a root.
	Cycle bool `json:"cycle,omitempty"`
	// Repeated means that the forest, read from the first tree to the last and from each node to its children, has this node at an
	// earlier place too, and its children (Blocked) only there.
	Repeated bool    `json:"repeated,omitempty"`
	Blocked  []*Node `json:"blocked,omitempty"`
}

type key struct {
	pid int
	xid uint32
}

type forest struct {
	nodes   map[key]*Node
	order   []key
	above   map[key][]key // blockers
	below   map[key][]key
	visited map[key]bool
	edges   map[[2]key]bool
	// repeated counts the places of nodes in the forest, without the first place of each node.
	repeated int
}

// maxNodes bounds the number of repeated nodes (Node.Repeated) in a forest.
const maxNodes = 1 << 14

// Forest returns the waits of m as trees, without waits for lightweight locks. Trees with more nodes come first. A process is
// below each blocker that holds the lock. If no blocker holds the lock, the process is below the first blocker in the queue.
// If a forest has too many repeated nodes (Node.Repeated), further ones are left out. Wait.Blockers has all blockers.
func (m *Moment) Forest() []*Node {
	f := &forest{
		nodes: make(map[key]*Node), above: make(map[key][]key), below: make(map[key][]key), visited: make(map[key]bool),
		edges: make(map[[2]key]bool),
	}
	for i := range m.Waits {
		w := &m.Waits[i]
		if w.Kind == LWLock {
			continue
		}
		k := key{pid: cmp.Or(w.Leader, w.PID)}
		n := f.node(k)
		n.Waits = append(n.Waits, *w)
		for _, b := range parents(w.Blockers) {
			a := key{b.Leader, b.XID}
			above := f.node(a)
			above.XID, above.GID = b.XID, b.GID
			if !f.edges[[2]key{a, k}] {
				f.edges[[2]key{a, k}] = true
				f.above[k] = append(f.above[k], a)
				f.below[a] = append(f.below[a], k)
			}
		}
	}
	var roots []*Node
	for _, k := range f.order {
		if len(f.above[k]) == 0 {
			roots = append(roots, f.grow(k))
		}
	}
	for _, k := range f.order {
		if !f.visited[k] {
			roots = append(roots, f.cycle(k))
		}
	}
	size := make(map[*Node]int, len(roots))
	for _, n := range roots {
		size[n] = n.size()
	}
	sort.SliceStable(roots, func(i, j int) bool { return size[roots[i]] > size[roots[j]] })
	f.place(roots)
	return roots
}

// parents returns the blockers below which a wait is placed: all that hold the lock. If no blocker holds the lock, it is
// the first blocker ahead in the queue, which itself waits for others.
func parents(blockers []Blocker) []Blocker {
	var hard []Blocker
	for _, b := range blockers {
		if b.Hard {
			hard = append(hard, b)
		}
	}
	if hard == nil && len(blockers) > 0 {
		return blockers[:1]
	}
	return hard
}

func (f *forest) node(k key) *Node {
	n := f.nodes[k]
	if n == nil {
		n = &Node{PID: k.pid}
		f.nodes[k], f.order = n, append(f.order, k)
	}
	return n
}

// grow links all nodes below a root that no tree has yet, so that the trees can be compared. The places of the nodes follow later.
func (f *forest) grow(root key) *Node {
	f.visited[root] = true
	for todo := []key{root}; len(todo) > 0; {
		k := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n := f.nodes[k]
		for _, b := range f.below[k] {
			if !f.visited[b] {
				f.visited[b] = true
				n.Blocked, todo = append(n.Blocked, f.nodes[b]), append(todo, b)
			}
		}
	}
	return f.nodes[root]
}

// place links the nodes of all trees again, in the order in which people read them. A node below several others has its children
// at its first place only.
func (f *forest) place(roots []*Node) {
	type child struct {
		of *Node
		k  key
	}
	clear(f.visited)
	var todo []child
	push := func(k key) {
		n := f.nodes[k]
		f.visited[k], n.Blocked = true, nil
		for _, b := range slices.Backward(f.below[k]) {
			todo = append(todo, child{n, b})
		}
	}
	for _, root := range roots {
		push(key{root.PID, root.XID})
		for len(todo) > 0 {
			c := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			n := f.nodes[c.k]
			if !f.visited[c.k] {
				c.of.Blocked = append(c.of.Blocked, n)
				push(c.k)
				continue
			}
			if f.repeated++; f.repeated > maxNodes {
				continue
			}
			again := *n
			again.Repeated, again.Blocked = true, nil
			c.of.Blocked = append(c.of.Blocked, &again)
		}
	}
}

// cycle makes a root of a node that no root reaches. It follows the blockers until it meets a node again. That node is
// in a cycle, and becomes the root.
func (f *forest) cycle(k key) *Node {
	seen := make(map[key]bool)
	for !seen[k] {
		seen[k] = true
		k = f.above[k][0]
	}
	for from := k; ; {
		f.nodes[from].Cycle = true
		from = f.above[from][0]
		if from == k {
			break
		}
	}
	return f.grow(k)
}

// size counts the nodes below a node.
func (n *Node) size() int {
	count := 0
	for todo := []*Node{n}; len(todo) > 0; {
		last := todo[len(todo)-1]
		todo = append(todo[:len(todo)-1], last.Blocked...)
		count += len(last.Blocked)
	}
	return count
}

// Text returns a forest as text, with one line for each node, indented below its blocker.
func Text(roots []*Node) string {
	type line struct {
		node  *Node
		depth int
	}
	const deepest = 40 // levels of indentation
	var s strings.Builder
	var todo []line
	for _, n := range slices.Backward(roots) {
		todo = append(todo, line{n, 0})
	}
	for len(todo) > 0 {
		l := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		fmt.Fprintf(&s, "%s%s\n", strings.Repeat("  ", min(l.depth, deepest)), l.node.describe())
		for _, n := range slices.Backward(l.node.Blocked) {
			todo = append(todo, line{n, l.depth + 1})
		}
	}
	return s.String()
}

func (n *Node) describe() string {
	var s strings.Builder
	if s.WriteString(strconv.Itoa(n.PID)); n.PID == 0 {
		s.Reset()
		fmt.Fprintf(&s, "prepared transaction %d", n.XID)
		if n.GID != "" {
			fmt.Fprintf(&s, " %q", n.GID)
		}
	}
	if n.Cycle {
		s.WriteString(" (deadlock)")
	}
	for i := range n.Waits {
		w := &n.Waits[i]
		s.WriteString(" waits")
		if w.PID != n.PID {
			fmt.Fprintf(&s, " (process %d of its group)", w.PID)
		}
		switch {
		case w.Tag != nil:
			fmt.Fprintf(&s, " for %s on %s", w.Mode, w.Tag)
		default:
			fmt.Fprintf(&s, " for a %s", w.Kind)
		}
		if !w.Since.IsZero() {
			fmt.Fprintf(&s, " since %s", w.Since.Format("15:04:05.000"))
		}
		if w.Reason != "" {
			fmt.Fprintf(&s, " (%s)", w.Reason)
		}
	}
	if n.Repeated {
		s.WriteString(" (see above)")
	}
	return s.String()
}

// BlockingPIDs returns the processes that pg_blocking_pids returns for a process: the blockers of this process and of
// all processes of its lock group, each once, in ascending order. The id of a prepared transaction is 0.
func (m *Moment) BlockingPIDs(pid int) []int {
	group := cmp.Or(m.groups[pid], pid)
	var pids []int
	for i := range m.Waits {
		w := &m.Waits[i]
		if w.Kind != Lock || w.PID != pid && cmp.Or(w.Leader, w.PID) != group {
			continue
		}
		for _, b := range w.Blockers {
			pids = append(pids, b.Leader)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
