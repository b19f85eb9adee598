package dwarf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

const (
	// maxPiece limits how many bytes of a section are read at once, for example a compilation unit.
	maxPiece = 256 << 20
	// maxString bounds a string in bytes.
	maxString = 16 << 10
	// stringStep is how many bytes are read at first to find a string's end.
	stringStep = 256
)

// section is one section of a file. An uncompressed section is read piece by piece, as needed. A compressed section is
// expanded into memory as a whole, or into a file as far as needed (see spilled).
type section struct {
	name string
	big  bool
	size uint64
	// r reads a section that is not compressed; nil for a compressed section.
	r io.ReaderAt
	// spill creates the file for the content of a large compressed section; nil: the section is expanded in memory. It
	// is called once.
	spill     func() (*spilled, error)
	spillOnce sync.Once
	spilled   *spilled
	// expand returns the content of a compressed section. It is called again if the cache has removed the content.
	expand func() ([]byte, error)
}

// reader returns a reader for pieces of the section; nil if the section has to be expanded in memory.
func (s *section) reader() io.ReaderAt {
	if s.spill == nil {
		return s.r
	}
	file := s.expanding()
	if file == nil {
		return nil
	}
	return file
}

// expanding returns the file into which the section is expanded. It is nil if the section is not expanded into a file,
// or if the file could not be created. In the second case, the section is expanded in memory.
func (s *section) expanding() *spilled {
	if s.spill == nil {
		return nil
	}
	s.spillOnce.Do(func() {
		if r, err := s.spill(); err == nil {
			s.spilled = r
		}
	})
	return s.spilled
}

// bytes returns n bytes at an offset. The error is ErrMalformed if the section is too short.
func (s *section) bytes(off, n uint64) ([]byte, error) {
	if off > s.size || n > s.size-off {
		return nil, fmt.Errorf("%w: %s has %#x bytes, not %#x at %#x", ErrMalformed, s.name, s.size, n, off)
	}
	if n > maxPiece {
		return nil, fmt.Errorf("%w: %#x bytes at %s+%#x", ErrTooLarge, n, s.name, off)
	}
	if n == 0 {
		return nil, nil
	}
	r := s.reader()
	if r == nil {
		return s.expanded(off, n)
	}
	p := make([]byte, n)
	if got, err := r.ReadAt(p, int64(off)); got < len(p) {
		if errors.Is(err, errSpill) {
			return s.expanded(off, n) // the disk may be full, or the section damaged
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%s+%#x: %w", s.name, off, err)
	}
	return p, nil
}

// expanded returns n bytes at an offset of a compressed section that is expanded in memory.
func (s *section) expanded(off, n uint64) ([]byte, error) {
	all, err := s.expand()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	if uint64(len(all)) < off+n {
		return nil, fmt.Errorf("%w: %s ends at %#x", ErrMalformed, s.name, len(all))
	}
	return all[off:][:n:n], nil
}

// cursor returns a cursor over n bytes at an offset, or over fewer bytes at the end of the section.
func (s *section) cursor(off, n uint64) (cursor, error) {
	if off >= s.size {
		return cursor{}, fmt.Errorf("%w: %s has %#x bytes, offset %#x", ErrMalformed, s.name, s.size, off)
	}
	p, err := s.bytes(off, min(n, s.size-off))
	return cursor{data: p, base: off, big: s.big}, err
}

// errNoEnd means that a string has no end within maxString bytes.
var errNoEnd = fmt.Errorf("%w: string without an end", ErrMalformed)

// str returns the string at off.
func (s *section) str(off uint64) (string, error) {
	for n := uint64(stringStep); ; n *= 8 {
		c, err := s.cursor(off, n)
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(c.data, 0); i >= 0 {
			return string(c.data[:i]), nil
		}
		if uint64(len(c.data)) < n || n >= maxString {
			return "", fmt.Errorf("%w: %s+%#x", errNoEnd, s.name, off)
		}
	}
}

// uint reads entry i of the array at the offset base. The entries are numbers of size bytes.
func (s *section) uint(base, i uint64, size int) (uint64, error) {
	if i > s.size/uint64(size) {
		return 0, fmt.Errorf("%w: %s has no entry %d", ErrMalformed, s.name, i)
	}
	c, err := s.cursor(base+i*uint64(size), uint64(size))
	if err != nil {
		return 0, err
	}
	v := c.uint(size)
	if c.bad {
		return 0, fmt.Errorf("%w: %s has no entry %d", ErrMalformed, s.name, i)
	}
	return v, nil
}
