package dwarf

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"pg_stat_backtrace/unwind/image"
)

// SpillFile is written once, from its start to its end, and read meanwhile and then.
type SpillFile interface {
	io.Writer
	io.ReaderAt
	io.Closer
}

// minSpill is the size from which on a compressed section is large.
const minSpill = 1 << 20

// spilled is what a compressed section expands to, on its way into a file: what has been written can be read already.
// The file is closed when nobody has it any more.
type spilled struct {
	file SpillFile

	mu   sync.Mutex
	more sync.Cond
	have uint64
	done bool
	err  error
}

// spill begins to write the content of a compressed section to a file.
func spill(m *image.Image, name string, create func() (SpillFile, error)) (*spilled, error) {
	f, err := create()
	if err != nil {
		return nil, err
	}
	s := &spilled{file: f}
	s.more.L = &s.mu
	go func() {
		err := m.Expand(s, name)
		s.mu.Lock()
		s.done, s.err = true, err
		s.mu.Unlock()
		s.more.Broadcast()
	}()
	return s, nil
}

// Write is for the expansion.
func (s *spilled) Write(p []byte) (int, error) {
	n, err := s.file.Write(p)
	s.mu.Lock()
	s.have += uint64(n)
	s.mu.Unlock()
	s.more.Broadcast()
	return n, err
}

// errSpill means that a section could not be written to its file as far as it was asked for.
var errSpill = errors.New("not expanded into a file")

// wait waits until so many bytes are there.
func (s *spilled) wait(n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.have < n && !s.done {
		s.more.Wait()
	}
	if s.have < n {
		return fmt.Errorf("%w: %w", errSpill, errors.Join(s.err, io.ErrUnexpectedEOF))
	}
	return nil
}

// ReadAt waits for what it is to read.
func (s *spilled) ReadAt(p []byte, off int64) (int, error) {
	if err := s.wait(uint64(off) + uint64(len(p))); err != nil {
		return 0, err
	}
	return s.file.ReadAt(p, off)
}

// start begins to expand large sections before they are needed: the entries, and beside them one after the other those
// that a look-up asks for next.
func (d *Data) start() {
	d.startOnce.Do(func() {
		s := &d.sections
		if s.info.spill == nil {
			return
		}
		s.info.reader()
		go func() {
			for _, next := range []*section{&s.abbrev, &s.str, &s.lineStr, &s.line, &s.rnglists, &s.ranges, &s.strOffsets} {
				if r, ok := next.reader().(*spilled); ok {
					_ = r.wait(next.size) // who reads is told of errors
				}
			}
		}()
	})
}
