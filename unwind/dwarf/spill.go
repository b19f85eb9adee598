package dwarf

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"pg_stat_backtrace/unwind/elfimage"
)

// SpillFile is a file for the content of a compressed section. It is written from start to end. It may be read while it
// is still being written.
type SpillFile interface {
	io.Writer
	io.ReaderAt
	io.Closer
}

// minSpill is the size in bytes from which on a compressed section is expanded into a file.
const minSpill = 1 << 20

// spilled is the content of a large compressed section in a file. The section is expanded only as far as readers need.
type spilled struct {
	file SpillFile
	// have is the number of bytes of the content that are already in the file.
	have atomic.Uint64

	mu     sync.Mutex // locked for one piece at a time, so that readers of earlier parts can go on
	pieces elfimage.Pieces
	err    error
}

// spill creates the file for a compressed section. It does not expand anything yet.
func spill(m *elfimage.Image, name string, create func() (SpillFile, error)) (*spilled, error) {
	pieces, err := m.Expand(name)
	if err != nil {
		return nil, err
	}
	f, err := create()
	if err != nil {
		return nil, err
	}
	return &spilled{file: f, pieces: pieces}, nil
}

// errSpill means that the requested part of a section could not be written to the section's file.
var errSpill = errors.New("not expanded into a file")

// reach expands the section until the file has n bytes.
func (s *spilled) reach(n uint64) error {
	for s.have.Load() < n {
		if err := s.more(n); err != nil {
			return fmt.Errorf("%w: %w", errSpill, err)
		}
	}
	return nil
}

// more expands one piece, unless the file already has n bytes or an earlier piece gave an error.
func (s *spilled) more(n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.have.Load() >= n {
		return s.err
	}
	p, err := s.pieces.Next()
	if err == nil {
		_, err = s.file.Write(p)
	}
	if err != nil {
		s.err, s.pieces = err, nil
		// The disk is full, or the section is damaged. The data before the error may be damaged, too, so it is not
		// used.
		s.have.Store(0)
		return err
	}
	s.have.Add(uint64(len(p)))
	return nil
}

// ReadAt expands the section as far as needed, then reads it.
func (s *spilled) ReadAt(p []byte, off int64) (int, error) {
	if err := s.reach(uint64(off) + uint64(len(p))); err != nil {
		return 0, err
	}
	return s.file.ReadAt(p, off)
}
