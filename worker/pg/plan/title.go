package plan

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/pg/layout"
)

// The names of properties, as in EXPLAIN (FORMAT JSON). PropertyNames has their order.
const (
	NodeType           = "Node Type"
	Strategy           = "Strategy"
	PartialMode        = "Partial Mode"
	Operation          = "Operation"
	Command            = "Command"
	JoinType           = "Join Type"
	ScanDirection      = "Scan Direction"
	IndexName          = "Index Name"
	RelationName       = "Relation Name"
	CTEName            = "CTE Name"
	Alias              = "Alias"
	ParentRelationship = "Parent Relationship"
	SubplanName        = "Subplan Name"
	ParallelAware      = "Parallel Aware"
	AsyncCapable       = "Async Capable"
	StartupCost        = "Startup Cost"
	TotalCost          = "Total Cost"
	PlanRows           = "Plan Rows"
	PlanWidth          = "Plan Width"
	// relationOID is the property that replaces RelationName if the relation's name is not known.
	relationOID = "Relation OID"
)

// PropertyNames returns the names of all properties, in the order in which they are printed.
func PropertyNames() []string {
	return []string{
		NodeType, Strategy, PartialMode, Operation, Command, ParentRelationship, SubplanName, ParallelAware, AsyncCapable,
		JoinType, ScanDirection, IndexName, RelationName, relationOID, CTEName, Alias,
		StartupCost, TotalCost, PlanRows, PlanWidth,
	}
}

// nodeType returns the name of a kind in EXPLAIN (FORMAT JSON).
func nodeType(kind string) string {
	switch name := titles[kind]; kind {
	case "MergeJoin", "HashJoin":
		return name + " Join"
	case "Agg":
		return "Aggregate"
	default:
		if name != "" {
			return name
		}
	}
	return kind
}

// titles has EXPLAIN's words for kinds of nodes whose title is not the name of the kind. The title of other kinds is
// the kind.
//
//nolint:gochecknoglobals // a table
var titles = map[string]string{
	"MergeAppend": "Merge Append", "RecursiveUnion": "Recursive Union", "SeqScan": "Seq Scan", "SampleScan": "Sample Scan",
	"IndexScan": "Index Scan", "IndexOnlyScan": "Index Only Scan", "BitmapIndexScan": "Bitmap Index Scan",
	"BitmapHeapScan": "Bitmap Heap Scan", "TidScan": "Tid Scan", "TidRangeScan": "Tid Range Scan",
	"SubqueryScan": "Subquery Scan", "FunctionScan": "Function Scan", "ValuesScan": "Values Scan",
	"TableFuncScan": "Table Function Scan", "CteScan": "CTE Scan", "NamedTuplestoreScan": "Named Tuplestore Scan",
	"WorkTableScan": "WorkTable Scan", "ForeignScan": "Foreign Scan", "CustomScan": "Custom Scan",
	"NestLoop": "Nested Loop", "MergeJoin": "Merge", "HashJoin": "Hash", "Material": "Materialize",
	"IncrementalSort": "Incremental Sort", "GatherMerge": "Gather Merge",
}

// scans reports whether a kind of node scans an entry of the range table. A bitmap index scan prints its index only.
func scans(kind string) bool { return strings.HasSuffix(kind, "Scan") && kind != "BitmapIndexScan" }

// names sets the properties of all nodes, among them the names of tables and indexes.
func (r *reader) names(l *Level) error {
	used := map[int]bool{}
	for _, n := range l.nodes {
		switch {
		case scans(n.Kind):
			used[r.number(n.plan, r.Scan.Scanrelid)] = true
		case n.Kind == "ModifyTable":
			used[r.number(n.plan, r.ModifyTable.NominalRelation)] = true
		case n.Kind == "Append":
			r.use(used, n, r.Append.Apprelids)
		case n.Kind == "MergeAppend":
			r.use(used, n, r.MergeAppend.Apprelids)
		}
	}
	unique(l.tables, used)
	for _, n := range l.nodes {
		if err := r.describe(l, n); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) use(used map[int]bool, n *Node, relids layout.Offset) {
	for _, i := range r.bitmapset(r.pointer(n.plan, relids)) {
		used[i] = true
	}
}

// unique gives each used table its name in the plan, as EXPLAIN does: if another table already has the name, it gets a
// number.
func unique(tables []table, used map[int]bool) {
	counts := map[string]int{}
	for i := range tables {
		t := &tables[i]
		name := t.eref
		switch {
		case !used[i+1]:
			continue
		case t.alias != "":
			name = t.alias
		case t.kind == rteRelation && t.name != "":
			name = t.name
		case t.kind == rteJoin:
			continue
		}
		if _, taken := counts[name]; taken {
			first := name
			for taken {
				counts[first]++
				suffix := "_" + strconv.Itoa(counts[first])
				name = first[:min(len(first), maxName-1-len(suffix))] + suffix
				_, taken = counts[name]
			}
		}
		counts[name] = 0
		t.refname = name
	}
}

// describe reads the properties of a node, with the names that they have in EXPLAIN (FORMAT JSON).
func (r *reader) describe(l *Level, n *Node) error {
	const usual = 14
	p := make(map[string]any, usual)
	p[NodeType], p[StartupCost], p[TotalCost], p[PlanRows], p[PlanWidth] = nodeType(n.Kind), n.Startup, n.Total, n.Rows, n.Width
	p[ParallelAware] = r.octet(n.plan+r.Plan.ParallelAware.Uint64()) != 0
	p[AsyncCapable] = r.octet(n.plan+r.Plan.AsyncCapable.Uint64()) != 0
	n.Properties = p
	if n.Label != "" {
		p[SubplanName] = n.Label
	}
	if n.relationship != "" {
		p[ParentRelationship] = n.relationship
	}
	var err error
	set := func(name string, read func() (string, error)) {
		if err != nil {
			return
		}
		var v string
		if v, err = read(); err == nil {
			p[name] = v
		}
	}
	switch n.Kind {
	case "ModifyTable":
		set(Operation, func() (string, error) { return r.modification(l, n) })
	case "ForeignScan":
		set(Operation, func() (string, error) {
			return named([]string{"", "Select", "Update", "Insert", "Delete"}, r.unsigned(n.plan, r.ForeignScan.Operation), "a command")
		})
	case "NestLoop", "MergeJoin", "HashJoin":
		set(JoinType, func() (string, error) { return r.join(r.unsigned(n.plan, r.Join.Jointype)) })
	case "Agg":
		set(Strategy, func() (string, error) {
			return named([]string{"Plain", "Sorted", "Hashed", "Mixed"}, r.unsigned(n.plan, r.Agg.Aggstrategy), "an aggregate")
		})
		set(PartialMode, func() (string, error) { return partialMode(r.unsigned(n.plan, r.Agg.Aggsplit)), nil })
	case "SetOp":
		set(Strategy, func() (string, error) {
			return named([]string{"Sorted", "Hashed"}, r.unsigned(n.plan, r.SetOp.Strategy), "a set operation")
		})
		set(Command, func() (string, error) {
			return named([]string{"Intersect", "Intersect All", "Except", "Except All"},
				r.unsigned(n.plan, r.SetOp.Cmd), "a set operation")
		})
	case "IndexScan":
		set(IndexName, func() (string, error) { return r.index(n, r.IndexScan.Indexid, r.IndexScanState.IssRelationDesc) })
		set(ScanDirection, func() (string, error) { return r.direction(n, r.IndexScan.Indexorderdir) })
	case "IndexOnlyScan":
		set(IndexName, func() (string, error) {
			return r.index(n, r.IndexOnlyScan.Indexid, r.IndexOnlyScanState.IossRelationDesc)
		})
		set(ScanDirection, func() (string, error) { return r.direction(n, r.IndexOnlyScan.Indexorderdir) })
	case "BitmapIndexScan":
		set(IndexName, func() (string, error) {
			return r.index(n, r.BitmapIndexScan.Indexid, r.BitmapIndexScanState.BissRelationDesc)
		})
	}
	if err != nil {
		return err
	}
	return r.describeTable(l, n)
}

// describeTable adds the table of a node.
func (r *reader) describeTable(l *Level, n *Node) error {
	var at int
	switch {
	case scans(n.Kind):
		at = r.number(n.plan, r.Scan.Scanrelid)
	case n.Kind == "ModifyTable":
		at = r.number(n.plan, r.ModifyTable.NominalRelation)
	default:
		return nil
	}
	if at == 0 && (n.Kind == "ForeignScan" || n.Kind == "CustomScan") {
		return nil
	}
	if n.Kind == "NamedTuplestoreScan" {
		return nil // EXPLAIN does not print the table's name, so no Comparison can prove it
	}
	if at < 1 || at > len(l.tables) {
		return fmt.Errorf("the table of a node %s is not in the range table", n.Kind)
	}
	t := &l.tables[at-1]
	if t.kind == rteRelation && t.name == "" && n.Kind != "ModifyTable" {
		return fmt.Errorf("the relation of a node %s is not open", n.Kind)
	}
	if n.Kind == "ModifyTable" {
		n.linked = r.links(l, n, at)
	}
	p := n.Properties
	switch {
	case t.kind == rteRelation && t.name == "":
		p[relationOID] = t.oid
	case t.kind == rteRelation:
		p[RelationName] = t.name
	case n.Kind == "CteScan" || n.Kind == "WorkTableScan":
		p[CTEName] = t.cte
	}
	if t.refname != "" {
		p[Alias] = t.refname
	}
	return nil
}

// links reports whether an outermost ModifyTable and its statement have the same command, and its table and its result
// relation have the same number and the same open relation. The statements of a Comparison are read-only, so they
// cannot prove these fields.
func (r *reader) links(l *Level, n *Node, at int) bool {
	root := r.pointer(n.addr, r.ModifyTableState.RootResultRelInfo)
	return n.addr == l.root && r.unsigned(n.plan, r.ModifyTable.Operation) == l.command &&
		r.unsigned(n.addr, r.ModifyTableState.Operation) == l.command && r.data(root) &&
		r.kind(root) == "ResultRelInfo" && r.number(root, r.ResultRelInfo.RiRangeTableIndex) == at &&
		l.tables[at-1].relation != 0 && r.pointer(root, r.ResultRelInfo.RiRelationDesc) == l.tables[at-1].relation
}

// Title returns the first part of the node's line in EXPLAIN. A node whose properties are not all known has the name of
// its kind only, such as "HashJoin".
func (n *Node) Title() string {
	name, ok := n.name()
	if !ok {
		name = n.Kind
	}
	if v, _ := n.Properties[AsyncCapable].(bool); v {
		name = "Async " + name
	}
	if v, _ := n.Properties[ParallelAware].(bool); v {
		name = "Parallel " + name
	}
	return name + n.on()
}

// text returns a property that is a text.
func (n *Node) text(name string) (string, bool) {
	v, ok := n.Properties[name].(string)
	return v, ok
}

// name returns EXPLAIN's words for a node. It returns false if a property that the words need is missing.
func (n *Node) name() (string, bool) {
	name := titles[n.Kind]
	if name == "" {
		name = n.Kind
	}
	switch n.Kind {
	case "ModifyTable":
		return n.text(Operation)
	case "ForeignScan":
		operation, ok := n.text(Operation)
		if operation != "Select" {
			name = "Foreign " + operation
		}
		return name, ok
	case "NestLoop", "MergeJoin", "HashJoin":
		join, ok := n.text(JoinType)
		switch {
		case join != "Inner":
			name += " " + join + " Join"
		case n.Kind != "NestLoop":
			name += " Join"
		}
		return name, ok
	case "Agg":
		strategy, ok := n.text(Strategy)
		mode, known := n.text(PartialMode)
		name = map[string]string{
			"Plain": "Aggregate", "Sorted": "GroupAggregate", "Hashed": "HashAggregate", "Mixed": "MixedAggregate",
		}[strategy]
		if mode != "Simple" {
			name = mode + " " + name
		}
		return name, ok && known
	case "SetOp":
		strategy, ok := n.text(Strategy)
		command, known := n.text(Command)
		if strategy == "Hashed" {
			name = "HashSetOp"
		}
		return name + " " + command, ok && known
	case "IndexScan", "IndexOnlyScan":
		index, ok := n.text(IndexName)
		direction, known := n.text(ScanDirection)
		if direction == "Backward" {
			name += " Backward"
		}
		return name + " using " + quoteIndex(index), ok && known
	case "BitmapIndexScan":
		index, ok := n.text(IndexName)
		return name + " on " + quoteIndex(index), ok
	}
	return name, true
}

// on returns the end of a node's title: its table, such as " on stock s"; "" if it has none. A relation without a known
// name has its object id instead.
func (n *Node) on() string {
	alias, known := n.text(Alias)
	if oid, ok := n.Properties[relationOID].(uint32); ok {
		return fmt.Sprintf(" on relation %d %s", oid, quote(alias))
	}
	object, ok := n.text(RelationName)
	if !ok {
		object, ok = n.text(CTEName)
	}
	if !ok && !known {
		return ""
	}
	text := " on"
	if object != "" {
		text += " " + quote(object)
	}
	if object != alias && alias != "" {
		text += " " + quote(alias)
	}
	return text
}

// quote returns an identifier as PostgreSQL writes it, except that it puts no quotes around reserved words.
func quote(name string) string {
	for i, c := range name {
		if (c < 'a' || c > 'z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
	}
	return name
}

// quoteIndex quotes the name of an index. An index without a known name is "index 16384".
func quoteIndex(name string) string {
	if oid, ok := strings.CutPrefix(name, "index "); ok {
		if _, err := strconv.ParseUint(oid, 10, 32); err == nil {
			return name
		}
	}
	return quote(name)
}

// modification returns the command of a ModifyTable.
func (r *reader) modification(_ *Level, n *Node) (string, error) {
	names := []string{"", "", "Update", "Insert", "Delete", ""}
	const merge = 15
	if r.major >= merge {
		names[5] = "Merge"
	}
	return named(names, r.unsigned(n.plan, r.ModifyTable.Operation), "a command")
}

func (r *reader) join(kind uint32) (string, error) {
	names := []string{"Inner", "Left", "Full", "Right", "Semi", "Anti"}
	const rightAnti, rightSemi = 16, 18
	switch {
	case r.major >= rightSemi:
		names = append(names, "Right Semi", "Right Anti")
	case r.major >= rightAnti:
		names = append(names, "Right Anti")
	}
	return named(names, kind, "a join")
}

func partialMode(split uint32) string {
	const combine, skipFinal = 1, 2
	switch {
	case split&skipFinal != 0:
		return "Partial"
	case split&combine != 0:
		return "Finalize"
	}
	return "Simple"
}

func named(names []string, value uint32, what string) (string, error) {
	if int(value) >= len(names) || names[value] == "" {
		return "", errors.New("the kind of " + what + " is none")
	}
	return names[value], nil
}

func (r *reader) direction(n *Node, direction layout.Offset) (string, error) {
	switch r.number(n.plan, direction) {
	case 1:
		return "Forward", nil
	case 0:
		return "NoMovement", nil
	case -1:
		return "Backward", nil
	}
	return "", errors.New("the direction of an index scan is none")
}

// index returns the name of a node's index, or its object id if the node has not opened it.
func (r *reader) index(n *Node, id, relation layout.Offset) (string, error) {
	oid, open := r.unsigned(n.plan, id), r.pointer(n.addr, relation)
	if open == 0 {
		return fmt.Sprintf("index %d", oid), nil
	}
	name := r.relation(open, oid)
	if name == "" {
		return "", fmt.Errorf("the index of a node %s contradicts its plan", n.Kind)
	}
	return name, nil
}
