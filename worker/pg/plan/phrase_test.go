package plan

import (
	"strings"
	"testing"
)

// TestPhrase has trees as they are after Proof.Apply.
func TestPhrase(t *testing.T) {
	t.Parallel()
	scan := func(change func(*Node)) *Node {
		n := &Node{
			Kind: "SeqScan", Active: true, Running: true,
			Properties: map[string]any{NodeType: "Seq Scan", RelationName: "Line item", Alias: "l"},
			Progress:   []Figure{{"Scan Block", int64(2435)}, {"Scan Blocks Total", int64(5000)}},
		}
		if change != nil {
			change(n)
		}
		return n
	}
	above := func(kind string, active bool, figures []Figure, children ...*Node) *Node {
		return &Node{Kind: kind, Active: active, Progress: figures, Children: children, Properties: map[string]any{JoinType: "Inner"}}
	}
	batches := []Figure{{"Hash Batch", int64(3)}, {"Hash Batches", int64(16)}}
	runs := func(n *Node) *Node {
		n.Running, n.Active = true, true
		return n
	}
	idle := func(n *Node) { n.Running, n.Active = false, false }
	for want, top := range map[string]*Node{
		`runs Seq Scan on "Line item" l, block 2,435 of 5,000 (48.7 %)`: above("Limit", true, nil, scan(nil)),
		`builds the hash table of "Line item", batch 3 of 16: Seq Scan on "Line item" l, block 2,435 of 5,000 (48.7 %)`: above("Limit", true, nil,
			above("Hash", true, batches, scan(nil))),
		`builds the hash table of "Line item", batch 3 of 16`: runs(above("Hash", true, batches, scan(idle))),
		"builds a hash table": runs(above("Hash", true, nil,
			above("NestLoop", false, nil, scan(idle), scan(idle)))),
		"runs Hash Join, batch 3 of 16": runs(above("HashJoin", true, nil, scan(idle), above("Hash", false, batches, scan(idle)))),
		`sorts (writes sorted runs to disk): Seq Scan on "Line item" l`: above("Sort", true, []Figure{{"Sort Phase", "writes sorted runs to disk"}},
			scan(func(n *Node) { n.Progress = nil })),
		`runs Seq Scan on "Line item" l, blocks given to all processes: 4,000 of 5,000 (80.0 %)`: scan(func(n *Node) {
			n.shared = true
			n.Progress = append(n.Progress, Figure{"Scan Blocks Given", int64(4000)})
		}),
		`runs Seq Scan on "Line item" l`: scan(func(n *Node) { n.shared = true }), // whose block is another process's
		"runs Seq Scan":                  scan(func(n *Node) { n.Properties, n.Progress = nil, nil }),
	} {
		if got := Phrase([]*Level{{Top: scan(nil)}, {Top: top}}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, top := range map[string]*Node{
		`runs Seq Scan on "Line item" l, 48 % of the blocks`:                                                 scan(nil),
		`builds the hash table of "Line item", batch 3 of 16: Seq Scan on "Line item" l, 48 % of the blocks`: above("Hash", true, batches, scan(nil)),
		"runs Hash Join, 49 % of 4,096 batches": runs(above("HashJoin", true, nil, scan(idle),
			above("Hash", false, []Figure{{"Hash Batch", int64(2047)}, {"Hash Batches", int64(4096)}}, scan(idle)))),
		`runs Seq Scan on "Line item" l, blocks given to all processes: 80 %`: scan(func(n *Node) {
			n.shared = true
			n.Progress = append(n.Progress, Figure{"Scan Blocks Given", int64(4000)})
		}),
		`runs Seq Scan on "Line item" l, at least 1,000,000 rows processed`: scan(func(n *Node) {
			n.Progress = []Figure{{"Rows Processed", int64(9_999_999)}}
		}),
		`runs Seq Scan on "Line item" l`: scan(func(n *Node) { n.Progress = []Figure{{"Rows Processed", int64(99)}} }),
	} {
		if got := RoundedPhrase([]*Level{{Top: top}}); got != want {
			t.Errorf("rounded: %q, want %q", got, want)
		}
	}
	for name, levels := range map[string][]*Level{
		"no level": nil, "no plan": {{Top: scan(nil)}, {Reason: "none"}}, "no mark": {{Top: scan(idle)}},
		"a reservation": {{Top: scan(func(n *Node) { n.Below = true })}},
	} {
		if got := Phrase(levels); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestNamesKeepTheirLine has names that try to look like a line with a mark.
func TestNamesKeepTheirLine(t *testing.T) {
	t.Parallel()
	const hostile = "x\n=> Seq Scan on y\r=> \u2028=> "
	n := &Node{Kind: "SeqScan", Label: "CTE " + hostile, Properties: map[string]any{NodeType: "Seq Scan", RelationName: hostile, Alias: hostile}}
	text := (&Level{Top: n}).Text(true)
	if strings.Count(text, "\n") != 2 || strings.ContainsAny(text, "\r\u2028") {
		t.Errorf("%q", text)
	}
}
