package stackoracle

import (
	"fmt"
	"strings"
)

// stack is one tool's output for one thread: its physical frames, innermost first. A function that is inlined into
// its caller has no separate frame.
type stack struct {
	pcs   []uint64
	names []string // as long as pcs
	// modules are the files of the frames, as long as pcs; our own capture only.
	modules []string
	// trampolines are the levels of frames to which signal handlers return; our own capture only.
	trampolines map[int]bool
	end         string // why it ends, in the tool's words
}

// stacks are the stacks of all threads of a process, by thread id.
type stacks map[int]*stack

func (s *stack) add(pc uint64, name string) {
	s.pcs = append(s.pcs, pc)
	s.names = append(s.names, name)
}

// exact reports whether the address of a frame is an interrupted instruction, or the start of a stack without a
// caller.
func (s *stack) exact(level int) bool {
	return level == 0 || s.trampolines[level] || s.trampolines[level-1] || s.pcs[level] == 0
}

// differ returns the level of the first frame in which two stacks differ, -1 when they are equal.
func differ(a, b *stack) int {
	for i := range max(len(a.pcs), len(b.pcs)) {
		if i >= len(a.pcs) || i >= len(b.pcs) || a.pcs[i] != b.pcs[i] {
			return i
		}
	}
	return -1
}

// has reports whether the functions named in chain follow one another somewhere in the stack.
func (s *stack) has(chain []string) bool {
	for i := range s.names {
		if i+len(chain) <= len(s.names) && equal(s.names[i:i+len(chain)], chain) {
			return true
		}
	}
	return len(chain) == 0
}

// equal compares names, without suffixes of the compiler (".constprop.0", ".part.0").
func equal(have, want []string) bool {
	for i := range have {
		name, _, _ := strings.Cut(have[i], ".")
		name, _, _ = strings.Cut(name, "(")
		if name != want[i] {
			return false
		}
	}
	return true
}

// beside shows two stacks from some levels before the first difference to some after it.
func beside(ours, other *stack, name string, level int) string {
	const around = 4
	var text strings.Builder
	cell := func(s *stack, i int) string {
		switch {
		case i < len(s.pcs):
			return fmt.Sprintf("%#x %s", s.pcs[i], s.names[i])
		case i == len(s.pcs):
			return "end: " + s.end
		default:
			return ""
		}
	}
	fmt.Fprintf(&text, "      %-50s %s\n", "ours", name)
	for i := max(0, level-around); i <= level+around; i++ {
		mark := " "
		if i == level {
			mark = ">"
		}
		fmt.Fprintf(&text, "%s#%-4d%-50s %s\n", mark, i, cell(ours, i), cell(other, i))
	}
	return text.String()
}
