package image

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"

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
