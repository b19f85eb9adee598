package backtrace

import (
	"strings"
	"testing"
)

// TestGeneratedNote checks that the note has the number of stacks, their share, and the setting to change.
func TestGeneratedNote(t *testing.T) {
	t.Parallel()
	if note := GeneratedNote(0, 100); note != "" {
		t.Errorf("a note without such stacks: %q", note)
	}
	note := GeneratedNote(5, 200)
	for _, part := range []string{"5 of 200 stacks (2.5 %)", "compiled at run time (JIT)", "jit = off"} {
		if !strings.Contains(note, part) {
			t.Errorf("%q is not in %q", part, note)
		}
	}
}
