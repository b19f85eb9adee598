package hostile

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/report/compressed"
)

// backtraces returns so many lines with different stacks. Each level is an address behind base.
func backtraces(t *testing.T, base uint64, n int) []byte {
	t.Helper()
	var out bytes.Buffer
	for i := range n {
		stack := make([]uint64, compressed.MaxLevels)
		for j := range stack {
			stack[j] = base + uint64(i>>(4*j)&15+16*j) + 1
		}
		b := compressed.Backtrace{Size: uint64(i), Stack: stack}
		line, err := b.Line()
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(line + "\n")
	}
	return out.Bytes()
}

// TestLogs: the names that a log gives to its addresses are bounded.
func TestLogs(t *testing.T) {
	t.Parallel()
	window := func(size int) string { return "~i#0x0-0x1000000 0x0 - " + strings.Repeat("N", size) + "\n" }
	const stacks = 2000
	many := backtraces(t, 0, stacks)
	var windows bytes.Buffer
	for i := range 1 << 16 {
		fmt.Fprintf(&windows, "~i#%#x-%#x 0x0 - %s\n", i<<24, (i+1)<<24, strings.Repeat("N", 255))
	}
	for name, c := range map[string]struct {
		log    []byte
		status int
		want   string
	}{
		"a long name":      {append([]byte(window(1_000_000)), many...), 1, "a name of more than 255 bytes"},
		"the longest name": {append([]byte(window(255)), many...), 0, ""},
		"a long line":      {append(bytes.Repeat([]byte("~m#"), 1<<16), many...), 1, ""},
		"many windows":     {append(windows.Bytes(), many[:1000]...), 1, ""},
		"no line end":      {bytes.Repeat([]byte("x"), 8<<20), 1, "no compressed backtrace"},
		"letters":          {bytes.Repeat([]byte("AAAAAAA1\n"), 1<<15), 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, "log", c.log)
			commands := [][]string{{"decode", "--heapmap", file}, {"decode", file}, {"decode", "--exe", *program, file}}
			for _, args := range commands[:cases(1, len(commands))] {
				r := measure(t, budget.Memory, []string{file}, args...)
				if r.status != c.status || !strings.Contains(r.err.head.String(), c.want) {
					t.Errorf("%v: status %d, %.300q", args, r.status, r.err.head.String())
				}
			}
		})
	}
}
