package plan

import (
	"fmt"
	"strconv"
	"strings"
)

// Figure is one property of a node's progress. Value is an int64, a string or true. Memory and disk are in kilobytes.
type Figure struct {
	Name  string
	Value any
}

// Actual has the rows that an instrumented node has returned so far in all its loops, and the number of its loops, the
// current one included.
type Actual struct{ Rows, Loops int64 }

// lines returns the progress of a node as lines of text.
func (n *Node) lines() []string {
	v := map[string]int64{}
	for _, f := range n.Progress {
		if i, ok := f.Value.(int64); ok {
			v[f.Name] = i
		}
	}
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, f := range n.Progress {
		switch f.Name {
		case "Scan Block":
			if _, known := v["Scan Blocks Total"]; !known {
				add("Block: %s", grouped(v[f.Name]))
			}
		case "Scan Blocks Given":
			add("Blocks given to all processes: %s", part(v[f.Name], v["Scan Blocks Total"]))
		case "Scan Blocks Total":
			_, known := v["Scan Block"]
			if !known {
				continue
			}
			if n.parallel() {
				add("Block of this process: number %s", grouped(v["Scan Block"]))
			} else {
				add("Block: %s", part(v["Scan Block"], v[f.Name]))
			}
		case "Exact Heap Blocks":
			text := fmt.Sprintf("Heap Blocks: exact=%d", v[f.Name])
			if lossy, known := v["Lossy Heap Blocks"]; known {
				text += fmt.Sprintf(" lossy=%d", lossy)
			}
			add("%s", text)
		case "Hash Batches":
			if batch, known := v["Hash Batch"]; known {
				add("Batch: %s of %s", grouped(batch), grouped(v[f.Name]))
			} else {
				add("Batches: %s", grouped(v[f.Name]))
			}
		case "Hash Batch":
			if _, known := v["Hash Batches"]; !known {
				add("Batch of this process: number %s", grouped(v[f.Name]))
			}
		case "Shared Hash Batches":
			add("Batches of all processes: %s", grouped(v[f.Name]))
		case "Shared Hash Buckets":
			add("Buckets: %s", grouped(v[f.Name]))
		case "Shared Hash Rows":
			add("Rows of all processes: %s", grouped(v[f.Name]))
		case "Hash Rows":
			add("Rows in all batches: %s", grouped(v[f.Name]))
		case "Hash Buckets":
			add("Buckets: %s", grouped(v[f.Name]))
		case "Hash Memory Usage":
			add("Memory Usage: %skB", grouped(v[f.Name]))
		case "Peak Memory Usage":
			add("Peak Memory Usage: %skB", grouped(v[f.Name]))
		case "Sort Phase":
			add("Sort: %v", f.Value)
		case "Sort Rows":
			add("Rows in memory: %s", grouped(v[f.Name]))
		case "Sort Memory":
			add("Memory: %skB", grouped(v[f.Name]))
		case "Sort Disk":
			add("Disk: %skB", grouped(v[f.Name]))
		case "HashAgg Groups":
			add("Groups: %s", grouped(v[f.Name]))
		case "HashAgg Spilled":
			add("Groups: more than fit into memory, the rest is on disk")
		case "Subplan":
			if all, known := v["Subplans"]; known {
				add("Subplan: %s of %s", grouped(v[f.Name]), grouped(all))
			}
		case "Workers Planned", "Workers Launched":
			add("%s: %d", f.Name, v[f.Name])
		case "Rows Processed":
			add("Rows processed: %s", grouped(v[f.Name]))
		}
	}
	return out
}

// parallel reports whether several processes share the node's scan, even if the property ParallelAware is missing.
func (n *Node) parallel() bool { return n.shared }

// part returns "2,435 of 5,000 (48.7 %)".
func part(done, all int64) string {
	const percent = 100
	if all <= 0 {
		return grouped(done)
	}
	return fmt.Sprintf("%s of %s (%.1f %%)", grouped(done), grouped(all), percent*float64(done)/float64(all))
}

// grouped returns a number with a comma between groups of three digits: "2,435".
func grouped(n int64) string {
	const group = 3
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%group == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
