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
		b.WriteString(pad() + oneLine(n.Label) + "\n")
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
	b.WriteString(oneLine(n.Title()) + n.estimates())
	if marks && n.Actual != nil {
		fmt.Fprintf(b, " (so far rows=%d loops=%d)", n.Actual.Rows, n.Actual.Loops)
	}
	if marks && n.Running && n.Below {
		b.WriteString("  <- this node, or one below it")
	}
	b.WriteString("\n")
	if marks {
		for _, line := range n.lines() {
			b.WriteString(markNone + pad() + oneLine(line) + "\n")
		}
	}
	for _, c := range n.Children {
		c.write(b, indent, marks)
	}
}

// oneLine replaces line breaks in a text with names, which could look like another line with a mark.
func oneLine(text string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune("\n\r\v\f\u0085\u2028\u2029", c) {
			return '?'
		}
		return c
	}, text)
}

// estimates returns the estimates that are known, as EXPLAIN prints them.
func (n *Node) estimates() string {
	var parts []string
	startup, ok := n.Properties[StartupCost].(float64)
	total, known := n.Properties[TotalCost].(float64)
	if ok && known {
		parts = append(parts, fmt.Sprintf("cost=%.2f..%.2f", startup, total))
	}
	if rows, ok := n.Properties[PlanRows].(float64); ok {
		parts = append(parts, fmt.Sprintf("rows=%.0f", rows))
	}
	if width, ok := n.Properties[PlanWidth].(int); ok {
		parts = append(parts, fmt.Sprintf("width=%d", width))
	}
	if len(parts) == 0 {
		return ""
	}
	return "  (" + strings.Join(parts, " ") + ")"
}
