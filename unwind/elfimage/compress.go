package elfimage

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"pg_stat_backtrace/unwind/budget"
)

// Pieces expands a compressed section piece by piece, only as far as callers need.
type Pieces interface {
	// Next returns the next piece, which is valid until the next call. After the last piece it returns io.EOF if the
	// total size is the declared size. Otherwise the error is ErrMalformed or an error of the image's reader.
	Next() ([]byte, error)
}

// Expand returns a reader that expands a compressed section in pieces, without keeping the section or its content in
// memory. Expand itself expands nothing. The error is ErrNoSection, ErrTooLarge, ErrMalformed or an error of the
// image's reader.
func (m *Image) Expand(name string) (Pieces, error) {
	s := m.find(name)
	if s == nil {
		return nil, fmt.Errorf("%s: %s: %w", m.name, name, ErrNoSection)
	}
	c, err := m.compression(s)
	var p Pieces
	if err == nil {
		p, err = c.pieces()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", m.name, name, err)
	}
	return p, nil
}

// compression is the header of a compressed section, and the compressed data after it.
type compression struct {
	kind elf.CompressionType
	// size is the declared size of the expanded content in bytes. length is the number of compressed bytes after the
	// header; if the file's size is unknown, at most readChunk.
	size, length uint64
	stream       *io.SectionReader
}

// stored is the kind of a section that is not compressed.
const stored elf.CompressionType = 0

// compression reads the header of a section. With SHF_COMPRESSED the header is a Chdr (gABI, chapter 4, "Section
// Compression"). In a .zdebug_ section the header is "ZLIB" and the size as eight big-endian bytes. A .zdebug_ section
// without this header is not compressed, because compression would have enlarged it.
func (m *Image) compression(s *section) (compression, error) {
	chdr, old := s.flags&elf.SHF_COMPRESSED != 0, strings.HasPrefix(s.name, ".zdebug_")
	if !chdr && !old {
		return compression{}, nil
	}
	n := uint64(12)
	if chdr {
		n = uint64(m.layout.pick(24, 12))
	}
	head, err := m.src.bytes(s.offset, min(s.size, n))
	c := compression{kind: elf.COMPRESS_ZLIB}
	switch {
	case err != nil:
		return c, err
	case chdr && uint64(len(head)) < n:
		return c, fmt.Errorf("%w: compression header of %d bytes", ErrMalformed, len(head))
	case chdr:
		c.kind = elf.CompressionType(m.layout.order.Uint32(head))
		c.size = m.layout.word(head[m.layout.pick(8, 4):])
	case uint64(len(head)) < n || !bytes.HasPrefix(head, []byte("ZLIB")):
		return compression{}, nil
	default:
		c.size = binary.BigEndian.Uint64(head[4:])
	}
	if err := m.src.check(s.offset, s.size); err != nil {
		return c, err
	}
	c.stream, c.length = io.NewSectionReader(m.src.r, int64(s.offset+n), int64(s.size-n)), s.size-n
	if m.src.size == 0 {
		c.length = min(c.length, readChunk)
	}
	return c, nil
}

// pieces returns a reader that expands the content piece by piece. The error is ErrTooLarge if the declared size is too
// large for the compressed size.
func (c compression) pieces() (Pieces, error) {
	if c.length > maxSection {
		return nil, fmt.Errorf("%w: %d bytes, %d decompressed", ErrTooLarge, c.length, c.size)
	}
	if limit := budget.Expansion.Of(int64(c.length)); c.size > uint64(limit) {
		return nil, fmt.Errorf("%w: %d bytes, %d decompressed: the limit is %d", ErrTooLarge, c.length, c.size, limit)
	}
	switch c.kind {
	case elf.COMPRESS_ZLIB, elf.COMPRESS_ZSTD:
		return &streamPieces{kind: c.kind, src: &streamSource{r: c.stream}, left: c.size, length: c.length}, nil
	default:
		return nil, fmt.Errorf("%w: compression type %d", ErrMalformed, uint32(c.kind))
	}
}

// all returns the whole expanded content.
func (c compression) all() ([]byte, error) {
	pieces, err := c.pieces()
	if err != nil {
		return nil, err
	}
	// Memory for the whole size is allocated at once only if the compressed size makes the declared size plausible.
	const plausible = 16
	p := make([]byte, 0, min(c.size, c.length*plausible))
	for {
		next, err := pieces.Next()
		p = append(p, next...)
		switch {
		case errors.Is(err, io.EOF):
			return p, nil
		case err != nil:
			return nil, err
		}
	}
}

// streamSource reads compressed data and keeps the reader's error, because a decoder may return another error in its
// place.
type streamSource struct {
	r   io.Reader
	err error
}

func (s *streamSource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// streamPieces is the Pieces of compressed data. The decoder needs no Close. The field left is the declared size of the
// content minus the bytes returned so far. If the content is longer than declared, Next returns an error after at most
// one more piece.
type streamPieces struct {
	kind elf.CompressionType
	src  *streamSource
	r    io.Reader // the decoder; nil until the first piece
	buf  []byte
	left uint64
	err  error
	// length is the number of compressed bytes.
	length uint64
}

// open makes the decoder: of zlib (RFC 1950) or Zstandard (RFC 8878).
func (z *streamPieces) open() (err error) {
	const piece = 128 << 10
	in := bufio.NewReaderSize(z.src, 1<<16)
	z.buf = make([]byte, min(piece, z.left+1))
	if z.kind == elf.COMPRESS_ZLIB {
		z.r, err = zlib.NewReader(in)
		return err
	}
	z.r, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSection),
		zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(uint64(budget.Window.Of(int64(z.length)))))
	return err
}

// Next implements Pieces. It reads until the piece is full or the stream ends. The decoder compares the checksum at the
// end of the stream.
func (z *streamPieces) Next() ([]byte, error) {
	if z.err != nil {
		z.r, z.buf = nil, nil
		return nil, z.err
	}
	var n int
	var err error
	if z.r == nil {
		err = z.open()
	}
	for err == nil && n < len(z.buf) {
		var more int
		more, err = z.r.Read(z.buf[n:])
		n += more
	}
	if err == nil && uint64(n) == z.left { // the piece is full, but the decoder has not reached the end of the stream
		var more int
		more, err = io.ReadFull(z.r, make([]byte, 1))
		n += more
	}
	z.err = z.judge(uint64(n), err)
	z.left -= min(z.left, uint64(n))
	if n > 0 && (z.err == nil || errors.Is(z.err, io.EOF)) {
		return z.buf[:n], nil
	}
	return nil, z.err
}

// judge returns the error that Next has to return after a piece of n bytes. err is the error of the decoder.
func (z *streamPieces) judge(n uint64, err error) error {
	name := strings.ToLower(strings.TrimPrefix(z.kind.String(), "COMPRESS_"))
	switch {
	case z.src.err != nil:
		return z.src.err
	case n > z.left:
		return fmt.Errorf("%w: decompressed to more bytes than promised", ErrMalformed)
	case errors.Is(err, io.EOF) && n < z.left:
		return fmt.Errorf("%w: decompressed to %d bytes less than promised", ErrMalformed, z.left-n)
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %s: %w", ErrMalformed, name, err)
	}
	return err
}
