package plan

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"pg_stat_backtrace/worker/pg/layout"
)

// table is an entry of the range table.
type table struct {
	kind     uint32
	oid      uint32
	name     string // of the relation; "" if it is not open, or no relation
	alias    string // in the statement; "": it gives none
	eref     string // the name that the planner uses
	cte      string
	refname  string // unique in the plan, "" if the plan does not use the table
	relation uint64
}

// tree reads the whole tree of a level. If structures of the tree contradict each other, the error says which.
func (r *reader) tree(l *Level) error {
	l.nodes, l.command = map[uint64]*Node{}, r.unsigned(l.plannedStmt, r.PlannedStmt.CommandType)
	if err := r.rangeTable(l); err != nil {
		return err
	}
	top, err := r.node(l, l.root, r.pointer(l.plannedStmt, r.PlannedStmt.PlanTree))
	if err != nil {
		return err
	}
	for level := []*Node{top}; len(level) > 0; {
		r.fetchChildren(level)
		var below []*Node
		for _, n := range level {
			if err := r.children(l, n); err != nil {
				return err
			}
			n.Children = n.all()
			below = append(below, n.Children...)
		}
		level = below
	}
	if err := r.names(l); err != nil {
		return err
	}
	l.Top = top
	return nil
}

// node reads one PlanState. If wanted is not 0, it is the address that the node's plan must have.
func (r *reader) node(l *Level, addr, wanted uint64) (*Node, error) {
	if len(l.nodes) >= maxNodes {
		return nil, fmt.Errorf("the plan has more than %d nodes", maxNodes)
	}
	if r.full {
		return nil, errors.New("the plan needs more memory than is read at once")
	}
	kind, ok := stateOf(r.kind(addr))
	if !ok || !r.data(addr) {
		return nil, errors.New("a node of the tree is no plan state")
	}
	if l.nodes[addr] != nil {
		return nil, fmt.Errorf("a node %s is in the tree twice", kind)
	}
	plan := r.pointer(addr, r.PlanState.Plan)
	n := &Node{
		Kind: kind, addr: addr, plan: plan, function: r.pointer(addr, r.PlanState.ExecProcNodeReal),
		Startup: r.float(plan, r.Plan.StartupCost), Total: r.float(plan, r.Plan.TotalCost),
		Rows: r.float(plan, r.Plan.PlanRows), Width: r.number(plan, r.Plan.PlanWidth), id: r.number(plan, r.Plan.PlanNodeId),
	}
	const widest = 1 << 27
	switch {
	case !r.data(plan) || r.kind(plan) != kind || wanted != 0 && plan != wanted,
		r.pointer(addr, r.PlanState.State) != l.estate,
		!within(r.stack.Code, n.function), !within(r.stack.Code, r.pointer(addr, r.PlanState.ExecProcNode)):
		return nil, fmt.Errorf("a node %s contradicts its plan", kind)
	case !whole(n.Startup), !whole(n.Total), !whole(n.Rows), n.Startup > n.Total, n.Rows != math.Trunc(n.Rows),
		n.Width < 0, n.Width > widest, n.id < 0, r.octet(plan+r.Plan.ParallelAware.Uint64()) > 1,
		r.octet(plan+r.Plan.AsyncCapable.Uint64()) > 1:
		return nil, fmt.Errorf("the estimates of a node %s are none", kind)
	}
	l.nodes[addr] = n
	return n, nil
}

// fetchChildren reads the memory of the nodes below nodes, and of their plans, in few calls.
func (r *reader) fetchChildren(nodes []*Node) {
	var states []uint64
	for _, n := range nodes {
		states = append(states, r.pointer(n.addr, r.PlanState.Lefttree), r.pointer(n.addr, r.PlanState.Righttree))
		members, _, _ := r.memberStates(n)
		states = append(states, members...)
	}
	r.fetch(states)
	plans := make([]uint64, 0, len(states))
	for _, state := range states {
		if r.data(state) {
			plans = append(plans, r.pointer(state, r.PlanState.Plan))
		}
	}
	r.fetch(plans)
}

// fetchTables reads the memory of the entries of a range table, and of their names, in few calls.
func (r *reader) fetchTables(entries []uint64, opened uint64) {
	r.fetch(entries)
	var aliases, relations []uint64
	for i, e := range entries {
		if !r.data(e) {
			continue
		}
		aliases = append(aliases, r.pointer(e, r.RangeTblEntry.Alias), r.pointer(e, r.RangeTblEntry.Eref))
		if opened != 0 {
			relations = append(relations, r.word(opened+uint64(i)*wordSize)) // i is not negative
		}
	}
	r.fetch(slices.Concat(aliases, relations))
	var names []uint64
	for _, a := range aliases {
		if r.data(a) {
			names = append(names, r.pointer(a, r.Alias.Aliasname))
		}
	}
	for _, a := range relations {
		if r.data(a) {
			names = append(names, r.pointer(a, r.RelationData.RdRel))
		}
	}
	r.fetch(names)
}

// children reads the nodes below a node.
func (r *reader) children(l *Level, n *Node) (err error) {
	if n.init, err = r.subPlans(l, n, r.PlanState.InitPlan); err != nil {
		return err
	}
	l.initPlans = append(l.initPlans, n.init...)
	plans, ok := r.list(r.pointer(n.plan, r.Plan.InitPlan))
	states, _ := r.list(r.pointer(n.addr, r.PlanState.InitPlan))
	if !ok || len(plans) != len(states) {
		return fmt.Errorf("the initial plans of a node %s contradict its plan", n.Kind)
	}
	for i, side := range [][2]layout.Offset{
		{r.PlanState.Lefttree, r.Plan.Lefttree}, {r.PlanState.Righttree, r.Plan.Righttree},
	} {
		state, plan := r.pointer(n.addr, side[0]), r.pointer(n.plan, side[1])
		if (state == 0) != (plan == 0) {
			return fmt.Errorf("the inputs of a node %s contradict its plan", n.Kind)
		}
		if state == 0 {
			continue
		}
		child, err := r.node(l, state, plan)
		if err != nil {
			return err
		}
		child.relationship = []string{"Outer", "Inner"}[i]
		n.others = append(n.others, child)
	}
	if n.members, err = r.members(l, n); err != nil {
		return err
	}
	n.subPlans, err = r.subPlans(l, n, r.PlanState.SubPlan)
	for _, child := range n.init {
		child.relationship = "InitPlan"
	}
	for _, child := range n.subPlans {
		child.relationship = "SubPlan"
	}
	for _, child := range n.members {
		child.relationship = "Member"
		if n.Kind == "SubqueryScan" {
			child.relationship = "Subquery"
		}
	}
	return err
}

// memberStates returns the addresses of the inputs of a node that keeps them in its own field, such as Append. has is
// false for other kinds of nodes, and ok is false if the inputs cannot be read.
func (r *reader) memberStates(n *Node) (states []uint64, has, ok bool) {
	switch n.Kind {
	case "Append":
		states, ok = r.array(n, r.AppendState.Appendplans, r.AppendState.AsNplans)
	case "MergeAppend":
		states, ok = r.array(n, r.MergeAppendState.Mergeplans, r.MergeAppendState.MsNplans)
	case "BitmapAnd":
		states, ok = r.array(n, r.BitmapAndState.Bitmapplans, r.BitmapAndState.Nplans)
	case "BitmapOr":
		states, ok = r.array(n, r.BitmapOrState.Bitmapplans, r.BitmapOrState.Nplans)
	case "SubqueryScan":
		states, ok = []uint64{r.pointer(n.addr, r.SubqueryScanState.Subplan)}, true
	case "CustomScan":
		states, ok = r.list(r.pointer(n.addr, r.CustomScanState.CustomPs))
	default:
		return nil, false, true
	}
	return states, true, ok
}

// members reads the inputs of a node that keeps them in its own field; see memberStates.
func (r *reader) members(l *Level, n *Node) ([]*Node, error) {
	states, has, ok := r.memberStates(n)
	if !has {
		return nil, nil
	}
	if !ok {
		return nil, fmt.Errorf("the inputs of a node %s cannot be read", n.Kind)
	}
	out := make([]*Node, 0, len(states))
	for _, a := range states {
		child, err := r.node(l, a, 0)
		if err != nil {
			return nil, err
		}
		out = append(out, child)
	}
	return out, nil
}

func (r *reader) array(n *Node, base, count layout.Offset) ([]uint64, bool) {
	first, number := r.pointer(n.addr, base), r.number(n.addr, count)
	if number < 0 || number > maxNodes || number > 0 && !r.data(first) {
		return nil, false
	}
	out := make([]uint64, number)
	for i := range out {
		out[i] = r.word(first + uint64(i)*wordSize) // i is not negative
	}
	return out, true
}

// subPlans reads the trees of a list of SubPlanStates. A tree that several expressions use is a child of the first.
func (r *reader) subPlans(l *Level, n *Node, field layout.Offset) ([]*Node, error) {
	states, ok := r.list(r.pointer(n.addr, field))
	if !ok {
		return nil, fmt.Errorf("the subplans of a node %s cannot be read", n.Kind)
	}
	var out []*Node
	for _, state := range states {
		plan := r.pointer(state, r.SubPlanState.Subplan)
		if !r.data(state) || r.kind(state) != "SubPlanState" || !r.data(plan) || r.kind(plan) != "SubPlan" {
			return nil, fmt.Errorf("a subplan of a node %s is none", n.Kind)
		}
		root := r.pointer(state, r.SubPlanState.Planstate)
		if l.nodes[root] != nil {
			continue
		}
		child, err := r.node(l, root, 0)
		if err != nil {
			return nil, err
		}
		const longest = 1000
		name, ok := r.text(r.pointer(plan, r.SubPlan.PlanName), longest)
		if !ok || name == "" {
			return nil, fmt.Errorf("a subplan of a node %s has no name", n.Kind)
		}
		child.Label = r.subPlanLabel(plan, name, field == r.PlanState.InitPlan)
		out = append(out, child)
	}
	return out, nil
}

// subPlanLabel returns the label that EXPLAIN prints. From 19 on, the name in a SubPlan does not begin with the kind.
func (r *reader) subPlanLabel(plan uint64, name string, initPlan bool) string {
	const bareNames, cteSubLink = 19, 7
	switch {
	case r.major < bareNames:
		return name
	case r.unsigned(plan, r.SubPlan.SubLinkType) == cteSubLink:
		return "CTE " + name
	case initPlan:
		return "InitPlan " + name
	}
	return "SubPlan " + name
}

// The kinds of entries of the range table (RTEKind) that matter here.
const (
	rteRelation = 0
	rteJoin     = 2
	rteLast     = 9
)

// rangeTable reads the tables of a statement.
func (r *reader) rangeTable(l *Level) error {
	list := r.pointer(l.plannedStmt, r.PlannedStmt.Rtable)
	entries, ok := r.list(list)
	if !ok {
		if r.data(list) && r.kind(list) == "List" && r.number(list, r.List.Length) > maxNodes {
			return fmt.Errorf("the plan has more than %d tables", maxNodes)
		}
		return errors.New("the range table cannot be read")
	}
	opened := r.pointer(l.estate, r.EState.EsRelations)
	r.fetchTables(entries, opened)
	for i, e := range entries {
		t := table{kind: r.unsigned(e, r.RangeTblEntry.Rtekind)}
		if !r.data(e) || r.kind(e) != "RangeTblEntry" || t.kind > rteLast {
			return errors.New("an entry of the range table is none")
		}
		if t.alias, ok = r.alias(r.pointer(e, r.RangeTblEntry.Alias)); !ok {
			return errors.New("the alias of a table cannot be read")
		}
		if t.eref, ok = r.alias(r.pointer(e, r.RangeTblEntry.Eref)); !ok || t.eref == "" {
			return errors.New("the name of an entry of the range table cannot be read")
		}
		t.cte, _ = r.text(r.pointer(e, r.RangeTblEntry.Ctename), maxName)
		if t.kind == rteRelation {
			t.oid = r.unsigned(e, r.RangeTblEntry.Relid)
			if opened != 0 {
				if t.relation = r.word(opened + uint64(i)*wordSize); t.relation != 0 { // i is not negative
					if t.name = r.relation(t.relation, t.oid); t.name == "" {
						return errors.New("an open relation contradicts the range table")
					}
				}
			}
		}
		l.tables = append(l.tables, t)
	}
	return nil
}

// alias returns the name of an Alias, "" for the null pointer.
func (r *reader) alias(a uint64) (string, bool) {
	if a == 0 {
		return "", true
	}
	if !r.data(a) || r.kind(a) != "Alias" {
		return "", false
	}
	const longest = 1000 // the planner's own names may be longer than an identifier
	return r.text(r.pointer(a, r.Alias.Aliasname), longest)
}

// relation returns the name of an open relation. It returns "" unless RelationData and the pg_class row both have the
// oid, and zeros fill the rest of the name.
func (r *reader) relation(a uint64, oid uint32) string {
	class := r.pointer(a, r.RelationData.RdRel)
	if !r.data(a) || !r.data(class) || oid == 0 || r.unsigned(a, r.RelationData.RdId) != oid || r.half(class) != oid {
		return ""
	}
	var name [maxName]byte
	if !r.read(class+r.FormDataPgClass.Relname.Uint64(), name[:]) {
		return ""
	}
	text, padding, ok := bytes.Cut(name[:], []byte{0})
	if !ok || len(bytes.Trim(padding, "\x00")) != 0 {
		return ""
	}
	return string(text)
}
