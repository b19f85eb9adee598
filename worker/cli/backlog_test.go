package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestBacklog: who logs does not wait for a reader that does not read. What there is room for comes in order; what is
// lost is counted.
func TestBacklog(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	b := newBacklog(write)
	filler := strings.Repeat("x", 100)
	const n = 5 * maxBacklog // far more than a pipe holds
	for i := range n {
		if _, err := fmt.Fprintf(b, "%d %s\n", i, filler); err != nil {
			t.Fatal(err)
		}
	}
	lines := bufio.NewScanner(read)
	next, gaps := 0, 0
	for lines.Scan() && lines.Text() != "again" {
		var lost int
		if k, _ := fmt.Sscanf(lines.Text(), `{"level":"warn","lost":%d,`, &lost); k == 1 {
			next, gaps = next+lost, gaps+1
		} else if want := fmt.Sprintf("%d %s", next, filler); lines.Text() != want {
			t.Fatalf("line %q instead of %q", lines.Text(), want)
		} else if next++; next == maxBacklog/2 {
			pgtest.Wait(t, "there is room", func() bool { return len(b.lines) < maxBacklog-1 })
			_, _ = io.WriteString(b, "again\n")
		}
	}
	if next != n || gaps == 0 {
		t.Errorf("%d lines of %d are written or counted, with %d gaps", next, n, gaps)
	}
	_, _ = io.WriteString(b, "last\n")
	_ = b.Close()
	if !lines.Scan() || lines.Text() != "last" {
		t.Errorf("at the end %q", lines.Text())
	}
}
