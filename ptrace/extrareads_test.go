package ptrace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// trailOf reads the addresses that the target "listed" printed.
func trailOf(t *testing.T, c *child) *snapshot.ExtraReads {
	t.Helper()
	var head, variable uint64
	if _, err := fmt.Sscanf(c.first, "ready 0x%x 0x%x", &head, &variable); err != nil {
		t.Fatalf("%q: %v", c.first, err)
	}
	return &snapshot.ExtraReads{
		Variables: []snapshot.Variable{{Address: variable, Follow: 64}, {Address: 8, Follow: 64}},
		Head:      head, OnStack: []snapshot.Deref{{Offset: 8, Length: 16}, {Offset: 0, Length: 16}}, Elsewhere: 16,
	}
}

// TestExtraReads follows a variable to a text that crosses a page, and a list whose nodes lead to texts. One node
// points directly to its text, and another one to an invalid address.
func TestExtraReads(t *testing.T) {
	t.Parallel()
	c := startTarget(t, "listed", "6")
	readable := trailOf(t, c)
	readable.Variables = readable.Variables[:1] // the other one must be left out, in further system calls
	untilState(t, c.pid, 'S')
	plain := mustCapture(t, c.pid, snapshot.Options{})
	for _, trail := range []*snapshot.ExtraReads{trailOf(t, c), readable} {
		for _, all := range []bool{false, true} {
			s := mustCapture(t, c.pid, snapshot.Options{ExtraReads: trail, AllThreads: all})
			checkTexts(t, s)
			if !bytes.Equal(s.Threads[0].Stack.Data, plain.Threads[0].Stack.Data) {
				t.Errorf("with the trail %+v the stack is another one", trail)
			}
		}
	}
	if s := mustCapture(t, c.pid, snapshot.Options{}); s.Found != nil {
		t.Errorf("without a trail: %d pieces", len(s.Found))
	}
	untilState(t, c.pid, 'S')
	for _, trail := range []*snapshot.ExtraReads{trailOf(t, c), nil} {
		s, err := observe.Observe(t.Context(), anyTarget(c.pid), snapshot.Options{ExtraReads: trail, Deadline: patience})
		switch {
		case err != nil || s.Engine != snapshot.EngineBlocked:
			t.Fatal(s, err)
		case trail != nil:
			checkTexts(t, s)
		case s.Found != nil:
			t.Errorf("without a trail: %d pieces", len(s.Found))
		}
	}
}

// TestExtraReadsBesideLongStack checks that a stack of the maximum size leaves room for the extra reads.
func TestExtraReadsBesideLongStack(t *testing.T) {
	for len(sessions) > 0 {
		<-sessions // their arenas may be larger than this test needs
	}
	const maxStack = 64 << 10
	c := startTarget(t, "deep", "600")
	untilState(t, c.pid, 'S')
	maps, err := process.Maps(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	s := mustCapture(t, c.pid, snapshot.Options{MaxStack: maxStack, ExtraReads: &snapshot.ExtraReads{
		Variables: []snapshot.Variable{{Address: maps[0].Start, Follow: 64}},
	}})
	if n := len(s.Threads[0].Stack.Data); n != maxStack {
		t.Errorf("%d bytes of stack", n)
	}
	if len(s.Found) == 0 {
		t.Error("the variable was not copied")
	}
}

// TestKinds uses kinds of nodes, identified by their words, with fewer copies, with more, and with too many.
func TestKinds(t *testing.T) {
	t.Parallel()
	c := startTarget(t, "listed", "6")
	untilState(t, c.pid, 'S')
	usual := trailOf(t, c).OnStack
	const odd, even, none = 1, 2, 3
	nonsense := []snapshot.Deref{{Offset: 8, Length: -1}, {Offset: -1 << 60, Length: 1 << 60}}
	for name, test := range map[string]struct {
		others []snapshot.Deref
		kinds  []snapshot.Kind
		nodes  string
	}{
		"none":     {usual, nil, "012 56"},
		"another":  {usual, []snapshot.Kind{{Word: none}}, "012 56"},
		"less":     {usual, []snapshot.Kind{{Word: odd}}, "0 2 6"},
		"more":     {nil, []snapshot.Kind{{Word: even, OnStack: usual}}, "0 2 6"},
		"both":     {nil, []snapshot.Kind{{Word: even, OnStack: usual}, {Word: odd, OnStack: usual}}, "012 56"},
		"first":    {nil, []snapshot.Kind{{Word: odd}, {Word: odd, OnStack: usual}}, ""},
		"nonsense": {usual, []snapshot.Kind{{Word: odd, OnStack: nonsense}}, "0 2 6"},
		"four":     {usual, []snapshot.Kind{{}, {}, {}, {Word: odd}}, "0 2 6"},
		"too many": {usual, []snapshot.Kind{{}, {}, {}, {}, {Word: odd}}, "012 56"},
	} {
		trail := trailOf(t, c)
		trail.OnStack, trail.Kinds = test.others, test.kinds
		stopped := mustCapture(t, c.pid, snapshot.Options{ExtraReads: trail})
		untilState(t, c.pid, 'S')
		observed, err := observe.Observe(t.Context(), anyTarget(c.pid), snapshot.Options{ExtraReads: trail, Deadline: patience})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*snapshot.Snapshot{stopped, observed} {
			text := texts(s)
			for _, n := range "01256" { // the text of 3 does not lie on the stack, the pointer of 4 is invalid
				if want := strings.ContainsRune(test.nodes, n); strings.Contains(text, "node "+string(n)) != want {
					t.Errorf("%s, %s: node %c in %q is not %t", name, s.Engine, n, text, want)
				}
			}
			if !strings.Contains(text, "node 3") {
				t.Errorf("%s, %s: node 3 is not in %q", name, s.Engine, text)
			}
		}
	}
	checkUnharmed(t, c.pid)
}

// texts returns the texts that extra reads found.
func texts(s *snapshot.Snapshot) string {
	var all []string
	for _, found := range s.Found {
		if i := bytes.IndexByte(found.Data, 0); i > 0 {
			all = append(all, string(found.Data[:i]))
		}
	}
	return strings.Join(all, ", ")
}

// checkTexts looks for the texts of the target "listed" with six nodes.
func checkTexts(t *testing.T, s *snapshot.Snapshot) {
	t.Helper()
	text := texts(s)
	for _, want := range []string{"across", "node 0", "node 1", "node 2", "node 3", "node 5", "node 6"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	if strings.Contains(text, "node 4") {
		t.Errorf("a pointer to nowhere was followed to %q", text)
	}
}

// TestExtraReadsExpected tries an Expected value that is right, wrong, or unreadable. The snapshot must contain all
// data that the extra reads lead to, the expected data if readable, and nothing twice.
func TestExtraReadsExpected(t *testing.T) {
	t.Parallel()
	c := startTarget(t, "listed", "6")
	trail := trailOf(t, c)
	trail.Variables = []snapshot.Variable{trail.Variables[0], {Address: trail.Variables[0].Address}} // near each other
	untilState(t, c.pid, 'S')
	plain := mustCapture(t, c.pid, snapshot.Options{ExtraReads: trail})
	pointer, ok := wordAt(plain.Found, trail.Variables[0].Address)
	if !ok || pointer == 0 {
		t.Fatal("the variable was not copied")
	}
	stack := plain.Threads[0].Stack
	for name, test := range map[string]struct {
		expected uint64
		more     int // pieces than without
	}{
		"right": {pointer, 0}, "another": {stack.Start + 1000, 1}, "nowhere": {8, 0}, "highest": {^uint64(0), 0},
		"across an end": {endBeforeHole(t, plain.Maps) - 8, 0},
	} {
		trail.Variables[0].Expected = test.expected
		s := mustCapture(t, c.pid, snapshot.Options{ExtraReads: trail, MapsSnapshot: plain.MapsSnapshot})
		checkTexts(t, s)
		if len(s.Found) != len(plain.Found)+test.more {
			t.Errorf("%s: %d pieces of memory, %d without an expectation", name, len(s.Found), len(plain.Found))
		}
		if !bytes.Equal(s.Threads[0].Stack.Data, stack.Data) {
			t.Errorf("%s: the stack is another one", name)
		}
		want := stack.Data[1000:][:trail.Variables[0].Follow]
		if test.more > 0 && !slices.ContainsFunc(s.Found, func(f snapshot.Stack) bool {
			return f.Start == test.expected && bytes.Equal(f.Data, want)
		}) {
			t.Errorf("%s: what was expected was not copied", name)
		}
	}
}

// endBeforeHole returns the end of a readable mapping that is followed by a hole.
func endBeforeHole(t *testing.T, maps []process.Mapping) uint64 {
	t.Helper()
	for i := range maps[:len(maps)-1] {
		if maps[i].Perms&process.Read != 0 && maps[i+1].Start > maps[i].End {
			return maps[i].End
		}
	}
	t.Fatal("the mappings have no hole")
	return 0
}

// TestExtraReadsOfBusyProcess captures a process whose variable, and then a node, constantly points to another text.
// Each text must belong to the pointer beside it, from the same moment.
func TestExtraReadsOfBusyProcess(t *testing.T) {
	t.Parallel()
	for name, expecting := range map[string]bool{"": false, "expecting": true} {
		t.Run(name, func(t *testing.T) { trailOfABusyProcess(t, expecting) })
	}
}

func trailOfABusyProcess(t *testing.T, expecting bool) {
	t.Helper()
	c := startTarget(t, "listed", "0", "busy")
	trail := trailOf(t, c)
	texts := make(map[string]int)
	for range 200 {
		s := mustCapture(t, c.pid, snapshot.Options{ExtraReads: trail})
		pointer, ok := wordAt(s.Found, trail.Variables[0].Address)
		if !ok {
			t.Fatal("the variable was not copied")
		}
		if expecting {
			trail.Variables[0].Expected = pointer // which is right for every other capture or so
		}
		for _, found := range s.Found {
			if pointer >= found.Start && pointer < found.Start+uint64(len(found.Data)) {
				text, _, _ := strings.Cut(string(found.Data[pointer-found.Start:]), "\x00")
				texts[text]++
			}
		}
	}
	if texts["odd"]+texts["even"] < 199 || texts["odd"] == 0 || texts["even"] == 0 { // at first it is "across"
		t.Errorf("texts %v", texts)
	}
}

// TestExtraReadsAtInvalidAddresses reads invalid addresses. The result must be empty, and the target unharmed.
func TestExtraReadsAtInvalidAddresses(t *testing.T) {
	t.Parallel()
	c := startTarget(t, "sleep")
	own := mustCapture(t, c.pid, snapshot.Options{})
	inStack := own.Threads[0].Stack.Start
	many := make([]snapshot.Variable, 100)
	for i := range many {
		many[i] = snapshot.Variable{Address: inStack + uint64(8*i), Follow: 1 << 30}
	}
	for _, trail := range []snapshot.ExtraReads{
		{Head: 8}, {Head: ^uint64(0)},
		{Head: inStack, OnStack: []snapshot.Deref{{Offset: -1 << 40, Length: -5}}, Elsewhere: 1 << 30},
		{Variables: many}, {Variables: []snapshot.Variable{{Address: ^uint64(3), Follow: -1}}}, {Elsewhere: 5},
	} {
		s := mustCapture(t, c.pid, snapshot.Options{ExtraReads: &trail})
		checkSnapshot(t, s)
		if total := len(s.Found); total > snapshot.MaxBlocks {
			t.Errorf("%+v: %d pieces", trail, total)
		}
	}
	checkUnharmed(t, c.pid)
}

// TestRanges copies ranges at known addresses, some of them unreadable. The others must be complete.
func TestRanges(t *testing.T) {
	t.Parallel()
	c := startTarget(t, "listed", "60") // the environment of a small machine adds little to its stack
	own := mustCapture(t, c.pid, snapshot.Options{})
	stack := own.Threads[0].Stack
	if len(stack.Data) < 3000 {
		t.Fatalf("a stack of %d bytes", len(stack.Data))
	}
	end := stack.Start + uint64(len(stack.Data))
	wanted := []snapshot.Range{
		{Address: end - 2900, Length: 400}, {Address: 8, Length: 100}, {Address: end - 2000, Length: 2000},
		{Address: end - 500, Length: -1}, {Address: end - 1000, Length: maxRanged}, {Address: ^uint64(0) - 10, Length: 100},
	}
	s := mustCapture(t, c.pid, snapshot.Options{ExtraReads: &snapshot.ExtraReads{Ranges: wanted}})
	stack = s.Threads[0].Stack // of the same moment
	for _, i := range []int{0, 2} {
		at := wanted[i].Address
		if !slices.ContainsFunc(s.Found, func(f snapshot.Stack) bool {
			return f.Start == at && bytes.Equal(f.Data, stack.Data[at-stack.Start:][:wanted[i].Length])
		}) {
			t.Errorf("%+v was not copied", wanted[i])
		}
	}
	if len(s.Found) != 2 {
		t.Errorf("%d pieces", len(s.Found))
	}
	many := make([]snapshot.Range, 2*maxRanges)
	for i := range many {
		many[i] = snapshot.Range{Address: end - 2900 + uint64(8*i%1000), Length: 8}
	}
	s = mustCapture(t, c.pid, snapshot.Options{ExtraReads: &snapshot.ExtraReads{Ranges: many}})
	total := 0
	for _, f := range s.Found {
		total += len(f.Data)
	}
	if total != 8*maxRanges {
		t.Errorf("%d bytes of %d ranges", total, len(many))
	}
	checkUnharmed(t, c.pid)
}

func wordAt(pieces []snapshot.Stack, addr uint64) (uint64, bool) {
	for _, p := range pieces {
		if off := addr - p.Start; addr >= p.Start && off+8 <= uint64(len(p.Data)) {
			return binary.NativeEndian.Uint64(p.Data[off:]), true
		}
	}
	return 0, false
}
