package elfimage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

const (
	// maxSection limits the bytes of one section in memory, both compressed and decompressed.
	maxSection = 256 << 20
	// readChunk is the first step, in bytes, of a large read if the size of the file is unknown.
	readChunk = 1 << 20
)

// source reads byte ranges of an image. It does not allocate more memory than the file can fill.
type source struct {
	r    io.ReaderAt
	size int64 // in bytes; 0: unknown
}

// newSource makes a source. It gets the file's size from r if possible.
func newSource(r io.ReaderAt) source {
	switch v := r.(type) {
	case interface{ Size() int64 }:
		return source{r: r, size: max(v.Size(), 0)}
	case interface{ Stat() (fs.FileInfo, error) }:
		if info, err := v.Stat(); err == nil && info.Mode().IsRegular() {
			return source{r: r, size: info.Size()}
		}
	}
	return source{r: r}
}

// bytes returns n bytes at an offset. The error is ErrTooLarge, ErrMalformed if the file is too short, or an error of
// the reader.
func (s source) bytes(off, n uint64) ([]byte, error) {
	if n > maxSection {
		return nil, fmt.Errorf("%w: %d bytes at offset %#x", ErrTooLarge, n, off)
	}
	if err := s.check(off, n); err != nil {
		return nil, err
	}
	if n <= readChunk || s.size > 0 {
		p := make([]byte, n)
		return p, s.fill(p, off)
	}
	return s.large(off, n)
}

// check returns an error if the file cannot contain n bytes at off.
func (s source) check(off, n uint64) error {
	if off > 1<<62 || n > 1<<62 {
		return fmt.Errorf("%w: %#x bytes at offset %#x", ErrMalformed, n, off)
	}
	if s.size > 0 && off+n > uint64(s.size) {
		return fmt.Errorf("%w: %d bytes at offset %#x, but the file has %d", ErrMalformed, n, off, s.size)
	}
	return nil
}

// large reads n bytes at off from a file of unknown size, which may be shorter. It allocates memory step by step as the
// bytes are read.
func (s source) large(off, n uint64) ([]byte, error) {
	var p []byte
	for done := uint64(0); done < n; {
		step := min(n-done, max(readChunk, done))
		p = append(p, make([]byte, step)...)
		if err := s.fill(p[done:], off+done); err != nil {
			return nil, err
		}
		done += step
	}
	return p, nil
}

// fill reads len(p) bytes at an offset, or returns an error.
func (s source) fill(p []byte, off uint64) error {
	if len(p) == 0 {
		return nil
	}
	n, err := s.r.ReadAt(p, int64(off))
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: file ends at offset %#x", ErrMalformed, off+uint64(max(n, 0)))
	}
	return fmt.Errorf("read at offset %#x: %w", off, err)
}
