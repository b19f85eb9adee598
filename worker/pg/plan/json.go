package plan

import (
	"bytes"
	"encoding/json"
)

// object writes a JSON object whose members keep their order.
type object struct {
	bytes.Buffer

	err error
}

func (o *object) add(name string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		o.err = err
		return
	}
	if o.Len() == 0 {
		o.WriteByte('{')
	} else {
		o.WriteByte(',')
	}
	key, _ := json.Marshal(name) //nolint:errchkjson // a text
	o.Write(key)
	o.WriteByte(':')
	o.Write(text)
}

func (o *object) end() ([]byte, error) {
	if o.Len() == 0 {
		o.WriteByte('{')
	}
	o.WriteByte('}')
	return o.Bytes(), o.err
}

// MarshalJSON returns the node in the shape of EXPLAIN (FORMAT JSON). "Running" marks the running node, "Active" the
// nodes above it, and "Running Below" says that the running node may be a node below it.
func (n *Node) MarshalJSON() ([]byte, error) {
	var o object
	for _, name := range PropertyNames() {
		if v, ok := n.Properties[name]; ok {
			o.add(name, v)
		}
	}
	if n.Actual != nil {
		o.add("Rows So Far", n.Actual.Rows)
		o.add("Loops So Far", n.Actual.Loops)
	}
	for _, f := range n.Progress {
		o.add(f.Name, f.Value)
	}
	switch {
	case n.Running:
		o.add("Running", true)
		if n.Below {
			o.add("Running Below", true)
		}
	case n.Active:
		o.add("Active", true)
	}
	if len(n.Children) > 0 {
		o.add("Plans", n.Children)
	}
	return o.end()
}

// MarshalJSON returns an element of EXPLAIN (FORMAT JSON): the plan, the text of the statement, and the reason if something is missing.
func (l *Level) MarshalJSON() ([]byte, error) {
	var o object
	if l.Source != "" {
		o.add("Query Text", l.Source)
	}
	if l.Returned != nil {
		o.add("Rows Returned", *l.Returned)
	}
	if l.Top != nil {
		o.add("Plan", l.Top)
	}
	if l.Reason != "" {
		o.add("Missing", l.Reason)
	}
	return o.end()
}
