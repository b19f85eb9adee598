package node

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWorkerThatDoesNotRead: the supervisor does not wait for a worker that does not read its lines, because the worker's user may
// have stopped it. When the worker reads again, it gets the next line.
func TestWorkerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	input, line, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	defer line.Close()
	c := &cluster{line: line}
	written := 0
	for err == nil {
		if err = c.write("ports 8001\n"); err == nil {
			written++
		}
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("after %d lines: %v", written, err)
	}
	if _, err := io.CopyN(io.Discard, input, int64(written*len("ports 8001\n"))); err != nil {
		t.Fatal(err)
	}
	if err := c.write("ports 8001\n"); err != nil {
		t.Errorf("a worker that reads again: %v", err)
	}
}
