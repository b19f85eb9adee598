package cli

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Writing a message to the log must not delay an answer of the worker. If the server hangs because of a disk, the log may be on the
// same disk. The program that reads the log through a pipe may hang too.
const (
	maxBacklog = 1024            // most lines that wait to be written; further lines are lost
	lastWords  = 2 * time.Second // longest time for writing the waiting lines at the end
)

// backlog is a writer that does not block. A goroutine writes the lines to another writer, in their order.
type backlog struct {
	to    io.Writer
	lines chan []byte // a nil line ends the goroutine
	done  chan struct{}

	mu   sync.Mutex
	lost int // lines that were lost since the last line that was accepted
}

func newBacklog(to io.Writer) *backlog {
	b := &backlog{to: to, lines: make(chan []byte, maxBacklog), done: make(chan struct{})}
	go b.work()
	return b
}

// Write accepts a line, or counts it as lost if maxBacklog lines wait. It never fails.
func (b *backlog) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost > 0 && b.take(b.gap()) {
		b.lost = 0
	}
	if b.lost > 0 || !b.take(slices.Clone(line)) {
		b.lost++
	}
	return len(line), nil
}

func (b *backlog) take(line []byte) bool {
	select {
	case b.lines <- line:
		return true
	default:
		return false
	}
}

// gap returns the line that is written in place of lost lines.
func (b *backlog) gap() []byte {
	return fmt.Appendf(nil, `{"level":"warn","lost":%d,"message":"messages were lost: nobody took them"}`+"\n", b.lost)
}

func (b *backlog) work() {
	defer close(b.done)
	for line := range b.lines {
		if line == nil {
			return
		}
		_, _ = b.to.Write(line)
	}
}

// Close waits until the accepted lines are written, but at most lastWords. Lines that come after Close are lost.
func (b *backlog) Close() error {
	late := time.NewTimer(lastWords)
	defer late.Stop()
	b.mu.Lock()
	last := [][]byte{nil}
	if b.lost > 0 {
		last = [][]byte{b.gap(), nil}
	}
	b.lost = 0
	b.mu.Unlock()
	for _, line := range last {
		select {
		case b.lines <- line:
		case <-late.C:
			return nil
		}
	}
	select {
	case <-b.done:
	case <-late.C:
	}
	return nil
}
