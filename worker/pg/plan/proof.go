package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/report/units"
)

// Names of fields in a Proof, in addition to the keys of properties and figures.
const (
	QueryText    = "Query Text"
	RowsReturned = "Rows Returned"
	RowsSoFar    = "Rows So Far"
	LoopsSoFar   = "Loops So Far"
	RunningNode  = "Running"
)

// Proof says which fields of plans were equal to EXPLAIN on a server of the same build. Only these fields are printed;
// see Apply.
type Proof struct {
	// Kinds are the kinds of nodes that were in the compared trees.
	Kinds []string `json:"kinds"`
	// Fields are the keys of the proven fields.
	Fields []string `json:"fields"`
	// Compared is the number of fields that were compared, 0 if this number was not stored.
	Compared int `json:"compared,omitempty"`
}

// Fingerprint identifies the layout of a major version and the way in which this release reads it. A Proof is valid only
// for the fingerprint with which it was made. The result is "" if the version is not known.
func Fingerprint(major int) string {
	const revision = 1 // of the meaning of a Proof
	l, ok := layout.Of(major)
	if !ok {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %v", revision, major, *l))
	return hex.EncodeToString(sum[:])
}

// key returns the key of a property in a Proof. If each kind of node keeps the property in its own structure, the key
// contains the kind.
func key(kind, property string) string {
	switch property {
	case Strategy, PartialMode, Operation, Command, IndexName, ScanDirection:
		return kind + "/" + property
	}
	return property
}

// FigureKey returns the key, in a Proof, of a Figure of a kind of nodes.
func FigureKey(kind, figure string) string { return kind + "/" + figure }

// Comparison compares fields of statements with EXPLAIN, and collects the fields that are proven.
type Comparison struct {
	kinds  map[string]bool
	values map[string]map[string]bool // by key: the values that were equal
	bad    map[string]string          // by key: the first difference
}

// NewComparison returns a comparison without statements.
func NewComparison() *Comparison {
	return &Comparison{kinds: map[string]bool{}, values: map[string]map[string]bool{}, bad: map[string]string{}}
}

// Differences describes the fields that differed.
func (c *Comparison) Differences() []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(c.bad)) {
		out = append(out, k+": "+c.bad[k])
	}
	return out
}

// Differs returns how many fields have differed so far.
func (c *Comparison) Differs() int { return len(c.bad) }

// Add compares one value of a field (got) with EXPLAIN's (want).
func (c *Comparison) Add(name string, got, want any) {
	g, w := printed(name, got), printed(name, want)
	if g != w {
		if c.bad[name] == "" {
			c.bad[name] = fmt.Sprintf("%s, not %s", g, w)
		}
		return
	}
	if c.values[name] == nil {
		c.values[name] = map[string]bool{}
	}
	c.values[name][g] = true
}

// printed returns a value as EXPLAIN prints it.
func printed(name string, v any) string {
	if f, ok := v.(float64); ok {
		if name == StartupCost || name == TotalCost {
			return fmt.Sprintf("%.2f", f)
		}
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprint(v)
}

// ErrOtherTree means that a tree has other nodes than EXPLAIN.
var ErrOtherTree = errors.New("the tree has other nodes than EXPLAIN")

// Tree compares a tree with the plan of EXPLAIN (FORMAT JSON). After ErrOtherTree nothing is proven.
func (c *Comparison) Tree(n *Node, explained map[string]any) error {
	if n == nil || n.Properties[NodeType] != explained[NodeType] {
		return ErrOtherTree
	}
	children, _ := explained["Plans"].([]any)
	if len(children) != len(n.Children) {
		return ErrOtherTree
	}
	c.kinds[n.Kind] = true
	for _, name := range PropertyNames() {
		got, has := n.Properties[name]
		want, wanted := explained[name]
		if name == relationOID || !has && !wanted {
			continue
		}
		if name == ParentRelationship && !wanted {
			continue // the outermost node has none in EXPLAIN
		}
		c.Add(key(n.Kind, name), got, want)
	}
	for i, child := range children {
		m, _ := child.(map[string]any)
		if err := c.Tree(n.Children[i], m); err != nil {
			return err
		}
	}
	return nil
}

// Proof returns the fields that were equal each time, with two different values at least: if a field always has the same
// value, it may have been read from a wrong offset.
func (c *Comparison) Proof() *Proof {
	p := &Proof{Kinds: slices.Sorted(maps.Keys(c.kinds)), Compared: len(c.bad)}
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		if c.bad[name] != "" {
			continue
		}
		p.Compared++
		if len(c.values[name]) > 1 {
			p.Fields = append(p.Fields, name)
		}
	}
	return p
}

// Apply removes the fields that are not proven from the levels.
func (p *Proof) Apply(levels []*Level) {
	f := &filter{kinds: map[string]bool{}, fields: map[string]bool{}}
	for _, k := range p.Kinds {
		f.kinds[k] = true
	}
	for _, k := range p.Fields {
		f.fields[k] = true
	}
	for _, l := range levels {
		if !f.fields[QueryText] {
			l.Source = ""
		}
		if !f.fields[RowsReturned] {
			l.Returned = nil
		}
		if l.Top == nil {
			continue
		}
		f.hidden = 0
		f.node(l.Top)
		var missing []string
		if f.hidden > 0 {
			missing = append(missing, "inputs of "+units.Count(f.hidden, "node")+" are left out: this build does not prove their place")
		}
		if !f.fields[RunningNode] {
			missing = append(missing, "the running node is left out: this build does not prove it")
		}
		if l.Reason != "" {
			missing = append([]string{l.Reason}, missing...)
		}
		l.Reason = strings.Join(missing, "; ")
	}
}

type filter struct {
	kinds, fields map[string]bool
	hidden        int
}

func (f *filter) node(n *Node) {
	for name := range n.Properties {
		linked := n.linked && (name == Operation || name == RelationName || name == relationOID || name == Alias && f.fields[Alias])
		if name != NodeType && !linked && (!f.fields[key(n.Kind, name)] || strings.Contains(key(n.Kind, name), "/") && !f.kinds[n.Kind]) {
			delete(n.Properties, name)
		}
	}
	if n.Kind == "ModifyTable" && !n.linked {
		for _, name := range []string{Operation, RelationName, Alias} {
			delete(n.Properties, name)
		}
	}
	if n.Label != "" && !f.fields[SubplanName] {
		n.Label = "subplan"
	}
	if !f.fields[RowsSoFar] || !f.fields[LoopsSoFar] {
		n.Actual = nil
	}
	n.Progress = slices.DeleteFunc(n.Progress, func(v Figure) bool {
		return (!f.fields[FigureKey(n.Kind, v.Name)] || !f.fields[ParallelAware]) &&
			(!n.linked || v.Name != "Rows Processed" || !f.fields[RowsReturned])
	})
	if !f.fields[RunningNode] {
		n.Running, n.Active, n.Below = false, false, false
	}
	if len(n.members) > 0 && !f.kinds[n.Kind] {
		n.Children = slices.DeleteFunc(slices.Clone(n.Children), func(c *Node) bool { return slices.Contains(n.members, c) })
		f.hidden++
	}
	for _, c := range n.Children {
		f.node(c)
	}
}
