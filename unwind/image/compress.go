package image

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// decompress expands a section with SHF_COMPRESSED: a Chdr (gABI, chapter 4, "Section Compression") and a stream.
func (l layout) decompress(data []byte) ([]byte, error) {
	head := l.pick(24, 12)
	if len(data) < head {
		return nil, fmt.Errorf("%w: compression header of %d bytes", ErrMalformed, len(data))
	}
	size := l.word(data[l.pick(8, 4):])
	switch typ := elf.CompressionType(l.order.Uint32(data)); typ {
	case elf.COMPRESS_ZLIB:
		return inflate(data[head:], size)
	case elf.COMPRESS_ZSTD:
		return unzstd(data[head:], size)
	default:
		return nil, fmt.Errorf("%w: compression type %d", ErrMalformed, uint32(typ))
	}
}

// decompressOld expands a .zdebug_ section: "ZLIB", the size as eight big-endian bytes, a zlib stream. A section that
// would have grown is stored as it is.
func decompressOld(data []byte) ([]byte, error) {
	if len(data) < 12 || !bytes.HasPrefix(data, []byte("ZLIB")) {
		return data, nil
	}
	return inflate(data[12:], binary.BigEndian.Uint64(data[4:]))
}

// Expand writes the content of a compressed section to w, in pieces: neither the section nor its content is held in
// memory. The error is ErrNoSection, ErrTooLarge, ErrMalformed, the reader's or w's.
func (m *Image) Expand(w io.Writer, name string) error {
	s := m.find(name)
	if s == nil {
		return fmt.Errorf("%s: %s: %w", m.name, name, ErrNoSection)
	}
	if err := m.expandTo(w, s); err != nil {
		return fmt.Errorf("%s: %s: %w", m.name, name, err)
	}
	return nil
}

func (m *Image) expandTo(w io.Writer, s *section) error {
	size, err := m.expandedSize(s)
	if err != nil {
		return err
	}
	if size > maxSection || s.size > maxSection || s.offset > 1<<62 {
		return fmt.Errorf("%w: %d bytes, %d decompressed", ErrTooLarge, s.size, size)
	}
	in := io.NewSectionReader(m.src.r, int64(s.offset), int64(s.size))
	head, kind := int64(m.layout.pick(24, 12)), elf.COMPRESS_ZLIB
	if s.flags&elf.SHF_COMPRESSED == 0 {
		head = 12
	} else if p, err := m.src.bytes(s.offset, 4); err == nil {
		kind = elf.CompressionType(m.layout.order.Uint32(p))
	}
	if _, err := in.Seek(head, io.SeekStart); err != nil {
		return err
	}
	r, err := expander(bufio.NewReaderSize(in, 1<<16), kind)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	defer func() { _ = r.Close() }()
	n, err := io.Copy(w, io.LimitReader(r, int64(size)+1))
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	if uint64(n) != size {
		return fmt.Errorf("%w: decompressed to %d bytes, not %d", ErrMalformed, n, size)
	}
	return nil
}

// expander reads what a stream expands to.
func expander(in io.Reader, kind elf.CompressionType) (io.ReadCloser, error) {
	switch kind {
	case elf.COMPRESS_ZLIB:
		return zlib.NewReader(in)
	case elf.COMPRESS_ZSTD:
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(maxSection), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return r.IOReadCloser(), nil
	default:
		return nil, fmt.Errorf("compression type %d", uint32(kind))
	}
}

func inflate(data []byte, size uint64) ([]byte, error) {
	r, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: zlib: %w", ErrMalformed, err)
	}
	return expand(r, size, len(data))
}

func unzstd(data []byte, size uint64) ([]byte, error) {
	r, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(maxSection), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("%w: zstd: %w", ErrMalformed, err)
	}
	defer r.Close()
	return expand(r, size, len(data))
}

// expand reads size bytes, which is also all that the stream may hold. Memory is reserved at once only for a size that
// the compressed bytes make plausible.
func expand(r io.Reader, size uint64, from int) ([]byte, error) {
	if size > maxSection {
		return nil, fmt.Errorf("%w: %d bytes decompressed", ErrTooLarge, size)
	}
	var out bytes.Buffer
	out.Grow(int(min(size, uint64(from)*16)) + bytes.MinRead)
	n, err := out.ReadFrom(io.LimitReader(r, int64(size)+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if uint64(n) != size {
		return nil, fmt.Errorf("%w: decompressed to %d bytes, not %d", ErrMalformed, n, size)
	}
	return out.Bytes(), nil
}
