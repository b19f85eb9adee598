package cli

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// The log must not hold up an answer: the disk that it is written to may be what the server hangs on, or its reader
// may hang too.
const (
	maxBacklog = 1024            // lines that wait to be written; those that come then are lost
	lastWords  = 2 * time.Second // to be written in at the end
)

// backlog writes lines in the order in which they come, while nobody waits for that.
type backlog struct {
	to    io.Writer
	lines chan []byte // nil: the end
	done  chan struct{}

	mu   sync.Mutex
	lost int // lines since the last that was taken
}

func newBacklog(to io.Writer) *backlog {
	b := &backlog{to: to, lines: make(chan []byte, maxBacklog), done: make(chan struct{})}
	go b.work()
	return b
}

// Write takes a line, and never fails.
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

// gap is written in the place of lines that are lost.
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

// Close waits until all is written, but not for long. What is written later is lost.
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
