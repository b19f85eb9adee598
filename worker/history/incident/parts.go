package incident

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/locks"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/pg/state"
)

// Limits of the parts. Each part has its own time limit, so that a late part takes no time from the others.
const (
	memoryLimit    = 2 * time.Second
	contextsLimit  = 500 * time.Millisecond // for one process
	maxMemory      = 5                      // processes
	maxContexts    = 1 << 16                // of a process; also the limit of the pages of its memory that are kept
	largestSums    = 3                      // names in ProcessMemory.Largest
	plansLimit     = 3 * time.Second
	planLimit      = time.Second // for one process
	maxPlans       = 5
	maxPlanNodes   = 500
	maxWALReceived = 100
)

// ProcessMemory is the memory of a process without shared memory.
type ProcessMemory struct {
	PID       int32  `json:"pid"`
	Type      string `json:"backend_type,omitempty"`
	Anonymous uint64 `json:"anonymous_bytes"`
	Swapped   uint64 `json:"swapped_bytes"`
	// Contexts is the size of all memory contexts of the process. Largest has the names of contexts with the most memory. Error is
	// the reason if contexts are missing.
	Contexts int64         `json:"contexts_bytes,omitempty"`
	Largest  []ContextsSum `json:"largest_contexts,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// ContextsSum is the memory of all contexts with the same name.
type ContextsSum struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// WAL has positions in the WAL, in the form of the type pg_lsn.
type WAL struct {
	// Checkpoint is the position of the last checkpoint, from the control file.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Recovery is set on a standby. End is the end of the WAL on disk, and Replayed the end of the replayed WAL.
	Recovery bool       `json:"in_recovery"`
	End      string     `json:"end,omitempty"`
	Replayed string     `json:"replayed,omitempty"`
	Paused   bool       `json:"replay_paused,omitempty"`
	Senders  []Receiver `json:"senders,omitempty"`
	// Error is the reason why the positions are not known.
	Error string `json:"error,omitempty"`
}

// Receiver has the positions in the WAL up to which a WAL sender has sent and its receiver has confirmed WAL. PID is the process id
// of the WAL sender.
type Receiver struct {
	PID     int32  `json:"pid"`
	Logical bool   `json:"logical,omitempty"`
	Sent    string `json:"sent,omitempty"`
	Write   string `json:"write,omitempty"`
	Flush   string `json:"flush,omitempty"`
	Apply   string `json:"apply,omitempty"`
}

// ProcessPlan has the plans of the statements that a process executed, the outermost first. Error is the reason if plans are
// missing.
type ProcessPlan struct {
	PID  int32     `json:"pid"`
	Time time.Time `json:"time"`
	// Proven is set if the offsets in structures of this server were compared with an EXPLAIN of the same server.
	Proven     bool        `json:"layout_proven"`
	Statements []*PlanNode `json:"statements"`
	LeftOut    int         `json:"nodes_left_out,omitempty"`
	Error      string      `json:"error,omitempty"`
}

// unproven returns a remark for plans whose offsets were not compared with EXPLAIN; empty for others.
func (p *ProcessPlan) unproven() string {
	if p.Proven || len(p.Statements) == 0 {
		return ""
	}
	return runningplan.Unproven
}

// PlanNode is a node of a plan.
type PlanNode struct {
	Type string `json:"node_type"`
	// Title is the line with which EXPLAIN prints the node.
	Title string `json:"title,omitempty"`
	// Name is the name of the node's index, relation or common table expression; empty: it has none.
	Name string `json:"name,omitempty"`
	// Rows and Cost are the planner's estimates; nil: not known.
	Rows *float64 `json:"plan_rows,omitempty"`
	Cost *float64 `json:"total_cost,omitempty"`
	// Running marks the node in which the process was. With RunningBelow, the process may have been in a node below this one.
	Running      bool `json:"running,omitempty"`
	RunningBelow bool `json:"running_below,omitempty"`

	Children []*PlanNode `json:"plans,omitempty"`
}

// all reads all sessions of the server, also idle ones. It also returns the reader.
func all(c cluster.Cluster) (*state.Reader, *moment.Moment, error) {
	r, err := state.Open(c)
	if err != nil {
		return nil, nil, err
	}
	m, err := r.Read(state.Options{})
	return r, m, err
}

// addMemory adds the processes with the most memory that is not shared.
func (i *Incident) addMemory(ctx context.Context, src *Source, m *moment.Moment) {
	ctx, cancel := context.WithTimeout(ctx, memoryLimit)
	defer cancel()
	for j := range m.Sessions {
		s := &m.Sessions[j]
		if ctx.Err() != nil {
			i.missing("memory", fmt.Errorf("only %d of %d processes were read", j, len(m.Sessions)))
			break
		}
		if st, err := process.ReadStatus(s.PID); err == nil {
			i.Memory = append(i.Memory, ProcessMemory{PID: int32(s.ServerPID), Type: s.Type, Anonymous: st.Anonymous, Swapped: st.Swapped})
		}
	}
	sort.SliceStable(i.Memory, func(p, q int) bool {
		a, b := i.Memory[p], i.Memory[q]
		return cmp.Compare(b.Anonymous+b.Swapped, a.Anonymous+a.Swapped) < 0
	})
	i.Memory = i.Memory[:min(maxMemory, len(i.Memory))]
	for j := range i.Memory {
		p := &i.Memory[j]
		if err := p.contexts(ctx, src); err != nil {
			p.Error = err.Error()
		}
	}
}

// contexts reads the memory contexts of a process.
func (p *ProcessMemory) contexts(ctx context.Context, src *Source) error {
	if src.Capturer == nil {
		return errors.New("memory contexts are not read")
	}
	target, err := src.Server.Contains(int(p.PID))
	if err != nil {
		return err
	}
	defer target.Held.Release()
	ctx, cancel := context.WithTimeout(ctx, contextsLimit)
	defer cancel()
	tree, err := src.Capturer.MemoryContexts(ctx, target, memctx.Options{MaxContexts: maxContexts, MaxPages: maxContexts})
	if err != nil {
		return err
	}
	sums := map[string]int64{}
	for i := range tree.Contexts {
		c := &tree.Contexts[i]
		p.Contexts += max(c.Total, 0)
		sums[bounded(c.Name)] += max(c.Total, 0)
	}
	for name, n := range sums {
		p.Largest = append(p.Largest, ContextsSum{name, n})
	}
	sort.Slice(p.Largest, func(i, j int) bool {
		a, b := p.Largest[i], p.Largest[j]
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name)) < 0
	})
	p.Largest = p.Largest[:min(largestSums, len(p.Largest))]
	switch {
	case tree.LeftOut:
		p.Error = "some contexts are left out"
	case tree.Missing > 0:
		p.Error = "some contexts are missing, because they changed while they were read"
	case !tree.Consistent:
		p.Error = "the contexts changed while they were read"
	}
	return nil
}

// lsn returns a position in the WAL as PostgreSQL prints it; empty: not known.
func lsn(n uint64) string {
	const half = 32
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%X/%X", n>>half, uint32(n))
}

// addWAL adds the positions in the WAL.
func (i *Incident) addWAL(src *Source, r *state.Reader, m *moment.Moment, control cluster.Control) {
	i.WAL = &WAL{Checkpoint: lsn(control.Checkpoint)}
	l, err := locks.Open(src.Server)
	if err != nil {
		i.WAL.Error = err.Error()
		return
	}
	p, err := r.Positions(l, func(pid int) bool {
		return slices.ContainsFunc(m.Sessions, func(s moment.Session) bool { return s.ServerPID == pid && s.DatabaseOID != 0 })
	})
	if err != nil {
		i.WAL.Error = err.Error()
		return
	}
	i.WAL.Recovery, i.WAL.End, i.WAL.Replayed, i.WAL.Paused = p.Recovery, lsn(p.End), lsn(p.Replayed), p.Paused
	for _, s := range p.Senders[:min(maxWALReceived, len(p.Senders))] {
		i.WAL.Senders = append(i.WAL.Senders, Receiver{
			PID: int32(s.PID), Logical: s.Logical, Sent: lsn(s.Sent), Write: lsn(s.Write), Flush: lsn(s.Flush), Apply: lsn(s.Apply),
		})
	}
}

// addSystem adds the timeline and the position from IDENTIFY_SYSTEM. On a standby, the control file has an older timeline until the
// next restartpoint.
func (i *Incident) addSystem(ctx context.Context, src *Source) {
	if src.Identify == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, systemLimit)
	defer cancel()
	system, err := src.Identify(ctx)
	if err == nil && i.Server.SystemID != "" && system.ID != i.Server.SystemID {
		err = fmt.Errorf("the server has the system identifier %s, and its control file %s", system.ID, i.Server.SystemID)
	}
	if err != nil {
		i.missing("IDENTIFY_SYSTEM", err)
		return
	}
	i.Server.Timeline, i.Server.Position = system.Timeline, lsn(system.Position)
}

// addPlans adds the plans of the processes that block others, then of the statements that have run longest. It reads no plan of a
// session whose query text is not recorded, since a plan contains names from the query.
func (i *Incident) addPlans(ctx context.Context, src *Source, m *moment.Moment) {
	i.Plans = []ProcessPlan{}
	if src.Capturer == nil {
		return
	}
	present := map[int32]bool{}
	for j := range m.Sessions {
		present[int32(m.Sessions[j].ServerPID)] = true
	}
	pids := []int32{i.Reason.Root}
	for _, n := range i.Forest {
		pids = append(pids, n.PID)
	}
	running := slices.DeleteFunc(slices.Clone(i.Sessions), func(s Session) bool { return s.State != "active" || s.QueryStart == nil })
	slices.SortStableFunc(running, func(a, b Session) int {
		return cmp.Or(cmp.Compare(rank(i.Reason.Processes, a.PID), rank(i.Reason.Processes, b.PID)), a.QueryStart.Compare(*b.QueryStart))
	})
	for j := range running {
		pids = append(pids, running[j].PID)
	}
	ctx, cancel := context.WithTimeout(ctx, plansLimit)
	defer cancel()
	read := map[int32]bool{}
	for _, pid := range pids {
		if pid <= 0 || read[pid] || len(i.Plans) >= maxPlans || !present[pid] {
			continue
		}
		read[pid] = true
		j := slices.IndexFunc(i.Sessions, func(s Session) bool { return s.PID == pid })
		if j < 0 || i.Sessions[j].State != "active" {
			continue // the process executes no statement
		}
		p := ProcessPlan{PID: pid, Time: time.Now().UTC().Round(time.Microsecond), Statements: []*PlanNode{}}
		err := ctx.Err()
		switch {
		case err != nil:
		case i.Sessions[j].Query == "":
			err = errors.New("the query text of this session is not recorded")
		default:
			err = p.read(ctx, src)
		}
		if err != nil {
			p.Error = err.Error()
		}
		i.Plans = append(i.Plans, p)
	}
}

func (p *ProcessPlan) read(ctx context.Context, src *Source) error {
	target, err := src.Server.Contains(int(p.PID))
	if err != nil {
		return err
	}
	defer target.Held.Release()
	ctx, cancel := context.WithTimeout(ctx, planLimit)
	defer cancel()
	r := runningplan.Reader{Capturer: src.Capturer, NonStop: true, Proof: src.Proof}
	found := r.Read(ctx, target, nil)
	if found.Err != nil {
		return found.Err
	}
	nodes := planCopy{room: maxPlanNodes}
	p.Proven = found.Plans.Proven
	for _, l := range found.Plans.Levels {
		if l.Top != nil {
			p.Statements = append(p.Statements, nodes.node(l.Top, 0))
		}
		p.Error = cmp.Or(p.Error, l.Reason)
	}
	p.LeftOut = nodes.leftOut
	if len(found.Plans.Levels) == 0 {
		p.Error = "it executes no plan"
	}
	return nil
}

// planCopy copies nodes of plans. room is the number of nodes that it may still copy. leftOut is the number of omitted nodes.
type planCopy struct{ room, leftOut int }

// node copies a node with the nodes below it. depth is the number of nodes above it. It omits children beyond room. It also omits
// children that are deeper than deepestNode, because the page and the text do not show them, and each level makes the lines of the
// JSON form longer by two spaces.
func (c *planCopy) node(n *plan.Node, depth int) *PlanNode {
	text := func(names ...string) string {
		for _, name := range names {
			if s, ok := n.Properties[name].(string); ok && s != "" {
				return bounded(s)
			}
		}
		return ""
	}
	out := &PlanNode{
		Type: cmp.Or(text(plan.NodeType), n.Kind), Name: text(plan.IndexName, plan.RelationName, plan.CTEName),
		Rows: estimate(n, plan.PlanRows), Cost: estimate(n, plan.TotalCost),
		Title: bounded(n.Title()), Running: n.Running, RunningBelow: n.Running && n.Below,
	}
	c.room--
	for _, child := range n.Children {
		if c.room <= 0 || depth >= deepestNode {
			c.leftOut += nodesOf(child)
			continue
		}
		out.Children = append(out.Children, c.node(child, depth+1))
	}
	return out
}

// nodesOf returns the number of nodes of a tree.
func nodesOf(n *plan.Node) int {
	count := 1
	for _, child := range n.Children {
		count += nodesOf(child)
	}
	return count
}

// estimate returns a numeric property of a node, nil if it is not known.
func estimate(n *plan.Node, name string) *float64 {
	if v, ok := n.Properties[name].(float64); ok {
		return &v
	}
	return nil
}
