package plan

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/pg/layout"
)

// titles has EXPLAIN's words for kinds of nodes whose title is more than the kind. The title of other kinds is the kind.
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

// names reads the tables and indexes of the nodes and makes the titles.
func (r *reader) names(l *Level) error {
	used := map[int]bool{}
	for _, n := range l.nodes {
		switch {
		case scans(n.Kind):
			used[r.number(n.plan, r.Scan.Scanrelid)] = true
		case n.Kind == "ModifyTable":
			used[r.number(n.plan, r.ModifyTable.NominalRelation)] = true
		case n.Kind == "Append":
			r.use(used, n, r.Append.Appendplans)
		case n.Kind == "MergeAppend":
			r.use(used, n, r.MergeAppend.Mergeplans)
		}
	}
	unique(l.tables, used)
	for _, n := range l.nodes {
		title, err := r.title(l, n)
		if err != nil {
			return err
		}
		n.Title = title
	}
	return nil
}

func (r *reader) use(used map[int]bool, n *Node, plans layout.Offset) {
	for _, i := range r.bitmapset(r.pointer(n.plan, apprelids(plans))) {
		used[i] = true
	}
}

// unique gives each used table its name in the plan, as EXPLAIN does: a name that is taken gets a number.
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

// title returns the first part of the node's line in EXPLAIN.
func (r *reader) title(l *Level, n *Node) (string, error) {
	name := titles[n.Kind]
	if name == "" {
		name = n.Kind
	}
	var err error
	switch n.Kind {
	case "ModifyTable":
		name, err = r.operation(r.unsigned(n.plan, r.ModifyTable.Operation))
	case "ForeignScan":
		if command := r.unsigned(n.plan, r.ForeignScan.Operation); command != 1 {
			name, err = r.operation(command)
			name = "Foreign " + name
		}
	case "NestLoop", "MergeJoin", "HashJoin":
		var join string
		join, err = r.join(r.unsigned(n.plan, r.Join.Jointype))
		switch {
		case join != "":
			name += " " + join + " Join"
		case n.Kind != "NestLoop":
			name += " Join"
		}
	case "Agg":
		name, err = r.aggregate(n)
	case "SetOp":
		name, err = r.setOperation(n)
	case "IndexScan":
		name, err = r.indexed(n, name, r.IndexScan.Indexid, r.IndexScanState.IssRelationDesc, r.IndexScan.Indexorderdir)
	case "IndexOnlyScan":
		name, err = r.indexed(n, name, r.IndexOnlyScan.Indexid, r.IndexOnlyScanState.IossRelationDesc,
			r.IndexOnlyScan.Indexorderdir)
	case "BitmapIndexScan":
		var index string
		index, err = r.index(n, r.BitmapIndexScan.Indexid, r.BitmapIndexScanState.BissRelationDesc)
		name += " on " + index
	}
	if err != nil {
		return "", err
	}
	if r.octet(n.plan+r.Plan.AsyncCapable.Uint64()) != 0 {
		name = "Async " + name
	}
	if r.octet(n.plan+r.Plan.ParallelAware.Uint64()) != 0 {
		name = "Parallel " + name
	}
	at := 0
	switch {
	case scans(n.Kind):
		at = r.number(n.plan, r.Scan.Scanrelid)
	case n.Kind == "ModifyTable":
		at = r.number(n.plan, r.ModifyTable.NominalRelation)
	default:
		return name, nil
	}
	if at == 0 && (n.Kind == "ForeignScan" || n.Kind == "CustomScan") {
		return name, nil
	}
	if at < 1 || at > len(l.tables) {
		return "", fmt.Errorf("the table of a node %s is not in the range table", n.Kind)
	}
	t := &l.tables[at-1]
	if t.kind == rteRelation && t.name == "" && n.Kind != "ModifyTable" {
		return "", fmt.Errorf("the relation of a node %s is not open", n.Kind)
	}
	return name + on(t, n.Kind), nil
}

// on returns the table of a node. The name of a relation that is not known is its object id.
func on(t *table, kind string) string {
	object := ""
	switch {
	case t.kind == rteRelation && t.name == "":
		return fmt.Sprintf(" on relation %d %s", t.oid, quote(t.refname))
	case t.kind == rteRelation:
		object = t.name
	case kind == "CteScan" || kind == "WorkTableScan":
		object = t.cte
	case kind == "NamedTuplestoreScan":
		object = t.enr
	}
	text := " on"
	if object != "" {
		text += " " + quote(object)
	}
	if object != t.refname && t.refname != "" {
		text += " " + quote(t.refname)
	}
	return text
}

// quote returns an identifier as PostgreSQL writes it, except that it does not know the reserved words.
func quote(name string) string {
	for i, c := range name {
		if (c < 'a' || c > 'z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
	}
	return name
}

func (r *reader) operation(command uint32) (string, error) {
	names := []string{"", "", "Update", "Insert", "Delete", ""}
	const merge = 15
	if r.major >= merge {
		names[5] = "Merge"
	}
	return named(names, command, "a command")
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
	name, err := named(names, kind, "a join")
	if name == "Inner" {
		name = ""
	}
	return name, err
}

func (r *reader) aggregate(n *Node) (string, error) {
	const combine, skipFinal = 1, 2
	name, err := named([]string{"Aggregate", "GroupAggregate", "HashAggregate", "MixedAggregate"},
		r.unsigned(n.plan, r.Agg.Aggstrategy), "an aggregate")
	switch split := r.unsigned(n.plan, r.Agg.Aggsplit); {
	case split&skipFinal != 0:
		name = "Partial " + name
	case split&combine != 0:
		name = "Finalize " + name
	}
	return name, err
}

func (r *reader) setOperation(n *Node) (string, error) {
	name, err := named([]string{"SetOp", "HashSetOp"}, r.unsigned(n.plan, r.SetOp.Strategy), "a set operation")
	if err != nil {
		return "", err
	}
	command, err := named([]string{"Intersect", "Intersect All", "Except", "Except All"},
		r.unsigned(n.plan, r.SetOp.Cmd), "a set operation")
	return name + " " + command, err
}

func named(names []string, value uint32, what string) (string, error) {
	if int(value) >= len(names) || names[value] == "" {
		return "", errors.New("the kind of " + what + " is none")
	}
	return names[value], nil
}

func (r *reader) indexed(n *Node, name string, id, relation, direction layout.Offset) (string, error) {
	switch r.number(n.plan, direction) {
	case 1, 0:
	case -1:
		name += " Backward"
	default:
		return "", errors.New("the direction of an index scan is none")
	}
	index, err := r.index(n, id, relation)
	return name + " using " + index, err
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
	return quote(name), nil
}
