package capture

import (
	"fmt"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// stackOf makes a stack of two frames with an address and the query of a level.
func stackOf(address uint64, query string) *backtrace.Thread {
	return &backtrace.Thread{Whole: true, Frames: []backtrace.Frame{
		{Address: address, Function: "f", Levels: []backtrace.Level{{Query: query}}},
		{Level: 1, Address: 1, Function: "main"},
	}}
}

// TestSharedStacks checks that equal stacks are kept once, that different ones stay apart, and what happens when there
// is no room.
func TestSharedStacks(t *testing.T) {
	one := stackOf(2, "SELECT 1")
	s := NewSharedStacks(10 * sizeOf(one))
	if got := s.of(one); got != one {
		t.Fatal("the first stack is not kept")
	}
	other := stackOf(2, "SELECT 1")
	other.TID = 7
	if s.of(other) != one {
		t.Error("an equal stack of another thread is kept again")
	}
	for what, different := range map[string]func(*backtrace.Thread){
		"level": func(t *backtrace.Thread) { t.Frames[0].Levels[0].Query = "SELECT 2" },
		"line":  func(t *backtrace.Thread) { t.Frames[1].Line = 3 },
		"note":  func(t *backtrace.Thread) { t.Frames[1].Note = "n" },
		"end":   func(t *backtrace.Thread) { t.Whole = false },
		"state": func(t *backtrace.Thread) { t.State = 'S' },
	} {
		if stack := stackOf(2, "SELECT 1"); s.of(stack) != one {
			t.Error("the stack is lost")
		} else if different(stack); s.of(stack) != stack {
			t.Errorf("a stack with another %s is taken for the first one", what)
		}
	}
	kept := 0
	for i := range 100 {
		if s.of(stackOf(uint64(100+i), "")) != nil {
			kept++
		}
	}
	if kept == 0 || kept > 5 || !s.Full() {
		t.Errorf("%d more stacks are kept where there is room for 10", kept)
	}
	if s.of(stackOf(2, "SELECT 1")) != one {
		t.Error("a kept stack is not found when there is no room")
	}
}

// BenchmarkSharedStacks looks for a stack of 30 frames that is kept.
func BenchmarkSharedStacks(b *testing.B) {
	s, stack := NewSharedStacks(1<<20), &backtrace.Thread{}
	for i := range 30 {
		stack.Frames = append(stack.Frames, backtrace.Frame{Level: i, Address: uint64(i), Function: fmt.Sprint("function", i)})
	}
	for b.Loop() {
		s.of(stack)
	}
}
