package plan

import (
	"fmt"
	"slices"
)

// Phrase says in words what the innermost statement does now: the running node with its progress, and the hash table or
// the sort that it feeds. It returns "" if the running node is not known, or if a node below it may be the running one.
// The caller must have removed the fields that are not proven; see Proof.Apply.
func Phrase(levels []*Level) string { return phraseOf(levels, false) }

// RoundedPhrase is Phrase with rounded figures, so that a statement has at most some hundred different phrases.
func RoundedPhrase(levels []*Level) string { return phraseOf(levels, true) }

func phraseOf(levels []*Level, rounded bool) string {
	if len(levels) == 0 || levels[len(levels)-1].Top == nil {
		return ""
	}
	path := levels[len(levels)-1].Top.toRunning()
	if len(path) == 0 {
		return ""
	}
	running := path[0]
	if running.Below {
		return ""
	}
	for _, n := range path {
		if !n.Active {
			continue
		}
		var text string
		switch n.Kind {
		case "Hash":
			text = "builds a hash table"
			if name := n.onlyTable(); name != "" {
				text = "builds the hash table of " + name
			}
			text += n.batch(rounded)
		case "Sort":
			text = "sorts"
			if phase, ok := n.figure("Sort Phase").(string); ok {
				text += " (" + phase + ")"
			}
		default:
			continue
		}
		if n == running {
			return text
		}
		return text + ": " + running.description(rounded)
	}
	return "runs " + running.description(rounded)
}

// toRunning returns the running node in the tree of n, and then the nodes above it up to n; nil if none of them runs.
func (n *Node) toRunning() []*Node {
	if n.Running {
		return []*Node{n}
	}
	for _, c := range n.Children {
		if path := c.toRunning(); path != nil {
			return append(path, n)
		}
	}
	return nil
}

// onlyTable returns the name of the only table below a node, "" if there are several or it is not known.
func (n *Node) onlyTable() string {
	for len(n.Children) == 1 {
		n = n.Children[0]
	}
	name, _ := n.text(RelationName)
	if len(n.Children) > 0 || name == "" {
		return ""
	}
	return quote(name)
}

// figure returns a figure of the progress, nil if it is not known.
func (n *Node) figure(name string) any {
	if i := slices.IndexFunc(n.Progress, func(f Figure) bool { return f.Name == name }); i >= 0 {
		return n.Progress[i].Value
	}
	return nil
}

// batch returns the current batch of a hash table in words; "" if the table has only one batch.
func (n *Node) batch(rounded bool) string {
	const exact = 100
	batch, known := n.figure("Hash Batch").(int64)
	batches, both := n.figure("Hash Batches").(int64)
	if !known || !both || batches < 2 {
		return ""
	}
	if rounded && batches > exact {
		return fmt.Sprintf(", %s of %s batches", percent(batch, batches), grouped(batches))
	}
	return fmt.Sprintf(", batch %s of %s", grouped(batch), grouped(batches))
}

// description returns the title of a node, with the most informative figure of its progress.
func (n *Node) description(rounded bool) string {
	text := n.Title()
	block, known := n.figure("Scan Block").(int64)
	blocks, both := n.figure("Scan Blocks Total").(int64)
	given, parallel := n.figure("Scan Blocks Given").(int64)
	switch {
	case rounded && parallel && both:
		return text + ", blocks given to all processes: " + percent(given, blocks)
	case rounded && known && both && !n.parallel():
		return text + ", " + percent(block, blocks) + " of the blocks"
	case parallel && both:
		return text + ", blocks given to all processes: " + part(given, blocks)
	case known && both && !n.parallel():
		return text + ", block " + part(block, blocks)
	}
	if n.Kind == "HashJoin" {
		if i := slices.IndexFunc(n.Children, func(c *Node) bool { return c.Kind == "Hash" }); i >= 0 {
			text += n.Children[i].batch(rounded)
		}
	}
	if groups, ok := n.figure("HashAgg Groups").(int64); ok {
		text += count(groups, "groups", rounded)
	}
	if rows, ok := n.figure("Rows Processed").(int64); ok {
		text += count(rows, "rows processed", rounded)
	}
	return text
}

// count returns the number n with a word for the counted things, such as ", 250 rows". If rounded is set, it rounds n
// down to a power of ten, and returns "" below 100.
func count(n int64, of string, rounded bool) string {
	const least, base = 100, 10
	if !rounded {
		return fmt.Sprintf(", %s %s", grouped(n), of)
	}
	if n < least {
		return ""
	}
	power := int64(least)
	for n/power >= base {
		power *= base
	}
	return fmt.Sprintf(", at least %s %s", grouped(power), of)
}

// percent returns done divided by all, in whole percent, rounded down.
func percent(done, all int64) string {
	const whole = 100
	if all <= 0 || done < 0 {
		return "a part"
	}
	return fmt.Sprintf("%d %%", int64(whole*float64(done)/float64(all)))
}
