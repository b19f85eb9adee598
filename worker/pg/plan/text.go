package plan

import (
	"fmt"
	"strings"
)

// Marks of lines of a tree.
const (
	markRunning = "=> "
	markActive  = " | "
	markNone    = "   "
)

// Text returns the tree as EXPLAIN prints it. The line of each node has a mark before it if marks is set: "=>" for the
// node that runs, "|" for the nodes above it. With marks, the progress of a node is below its line.
func (l *Level) Text(marks bool) string {
	var b strings.Builder
	if l.Top != nil {
		l.Top.write(&b, 0, marks)
	}
	return b.String()
}

func (n *Node) write(b *strings.Builder, indent int, marks bool) {
	const step = 2
	pad := func() string { return strings.Repeat(" ", step*indent) }
	if n.Label != "" {
		if marks {
			b.WriteString(markNone)
		}
		b.WriteString(pad() + n.Label + "\n")
		indent++
	}
	if marks {
		switch {
		case n.Running:
			b.WriteString(markRunning)
		case n.Active:
			b.WriteString(markActive)
		default:
			b.WriteString(markNone)
		}
	}
	b.WriteString(pad())
	if indent > 0 {
		b.WriteString("->  ")
		indent += 2
	}
	indent++
	fmt.Fprintf(b, "%s  (cost=%.2f..%.2f rows=%.0f width=%d)", n.Title, n.Startup, n.Total, n.Rows, n.Width)
	if marks && n.Actual != nil {
		fmt.Fprintf(b, " (so far rows=%d loops=%d)", n.Actual.Rows, n.Actual.Loops)
	}
	if marks && n.Running && n.Below {
		b.WriteString("  <- this node, or one below it")
	}
	b.WriteString("\n")
	if marks {
		for _, line := range n.lines() {
			b.WriteString(markNone + pad() + "  " + line + "\n")
		}
	}
	for _, c := range n.Children {
		c.write(b, indent, marks)
	}
}
