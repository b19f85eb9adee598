package source

import (
	"slices"
	"strings"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
)

// maxNodes is the largest number of nodes in an answer of BlockingOf.
const maxNodes = 10_000

// nodeID identifies a node: a process, or a prepared transaction.
type nodeID struct {
	pid int
	xid uint32
}

// lineOf returns a session with its wait class.
func lineOf(s *moment.Session) *SessionLine {
	ours := s.Application == cluster.ApplicationName || strings.HasPrefix(s.Application, cluster.ApplicationName+" ")
	own := s.Type == clientBackend && ours
	return &SessionLine{Session: *s, Class: ClassOf(s), Own: own}
}

// byPID returns the sessions of a moment by process id.
func byPID(m *moment.Moment) map[int]*moment.Session {
	sessions := make(map[int]*moment.Session, len(m.Sessions))
	for i := range m.Sessions {
		sessions[m.Sessions[i].ServerPID] = &m.Sessions[i]
	}
	return sessions
}

// BlockingOf returns the forest of waits for locks of a moment, in the order of the screen. If a node waits for several other
// nodes, it is listed below the first of these only.
func BlockingOf(m *moment.Moment) *Blocking {
	b := &Blocking{Time: m.Time, Trees: len(m.Blocking), Nodes: []BlockingNode{}}
	for _, missing := range m.Missing {
		if strings.HasPrefix(missing, "locks: ") || strings.Contains(missing, "blockers") {
			b.Missing = append(b.Missing, missing)
		}
	}
	sessions := byPID(m)
	waiting := map[int]bool{}
	type entry struct {
		node  *moment.Node
		depth int
	}
	var todo []entry
	push := func(nodes []*moment.Node, depth int) {
		for i := range nodes {
			todo = append(todo, entry{nodes[len(nodes)-1-i], depth})
		}
	}
	push(m.Blocking, 0)
	places := map[nodeID]int{} // index of a node in b.Nodes
	again := map[nodeID]int{}
	waitFor := map[nodeID][]nodeID{} // the nodes that wait directly for the node of the key
	for len(todo) > 0 {
		e := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for i := range e.node.Waits {
			waiting[e.node.Waits[i].PID] = true
		}
		id := nodeID{e.node.PID, e.node.XID}
		if e.node.Repeated {
			again[id]++
			continue
		}
		if len(b.Nodes) >= maxNodes {
			b.Missing = append(b.Missing, "more than 10,000 processes wait for locks: the others are left out")
			break
		}
		n := BlockingNode{
			Depth: e.depth, PID: e.node.PID, XID: e.node.XID, GID: e.node.GID, Waits: e.node.Waits,
			Deadlock: e.node.Deadlock, Directly: len(e.node.Blocked),
		}
		if s := sessions[n.PID]; s != nil && n.PID != 0 {
			n.Session = lineOf(s)
		}
		places[id] = len(b.Nodes)
		b.Nodes = append(b.Nodes, n)
		for _, w := range e.node.Blocked {
			waitFor[id] = append(waitFor[id], nodeID{w.PID, w.XID})
		}
		push(e.node.Blocked, e.depth+1)
	}
	for id, n := range again {
		if i, ok := places[id]; ok {
			b.Nodes[i].MoreBlockers = n
		}
	}
	b.Waiting = len(waiting)
	b.countBelow(waitFor, places)
	return b
}

// countBelow sets Blocks of each node: the number of nodes that wait for the node, directly or through others. If there are
// more than 2,000 nodes, a waiting node is counted only for the nodes above it on the screen.
func (b *Blocking) countBelow(waitFor map[nodeID][]nodeID, places map[nodeID]int) {
	const most = 2000
	if len(b.Nodes) > most {
		var open []int // the nodes above the current one
		for i := range b.Nodes {
			open = open[:min(len(open), b.Nodes[i].Depth)]
			for _, above := range open {
				b.Nodes[above].Blocks++
			}
			open = append(open, i)
		}
		return
	}
	below := make([][]int, len(b.Nodes))
	for id, list := range waitFor {
		if i, ok := places[id]; ok {
			for _, other := range list {
				if k, ok := places[other]; ok {
					below[i] = append(below[i], k)
				}
			}
		}
	}
	seen := make([]int, len(b.Nodes)) // for each node: the index plus 1 of the node in whose Blocks it was counted last
	for i := range b.Nodes {
		seen[i] = i + 1
		for todo := slices.Clone(below[i]); len(todo) > 0; {
			k := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if seen[k] != i+1 {
				seen[k] = i + 1
				b.Nodes[i].Blocks++
				todo = append(todo, below[k]...)
			}
		}
	}
}
