package elfimage

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// errXZ means that the data is not an xz file, or an xz file that this package does not support.
var errXZ = errors.New("malformed xz data")

const (
	xzHeader = 12 // size of a stream's header in bytes
	// maxDictionary bounds the LZMA2 dictionary that a block declares: "xz -9" declares 64 MiB.
	maxDictionary = 64 << 20
	// maxBlocks bounds the blocks of a stream. The decoder of each block allocates its own memory. With several threads,
	// xz makes blocks of 1 MiB or more.
	maxBlocks   = 1024
	filterLZMA2 = 0x21
)

// unxz decompresses an xz file (The .xz File Format 1.2.0): one stream of any number of blocks, with LZMA2 as the only
// filter. limit is the maximum size of the result in bytes. A block's header may declare a dictionary of up to 4 GiB.
// unxz reads the headers itself, so that it allocates no dictionary that is larger than the content of its block. The
// error is errXZ, also for a stream with more than maxBlocks blocks or with a block without content.
func unxz(p []byte, limit int) ([]byte, error) {
	newCheck, err := streamHeader(p)
	if err != nil {
		return nil, err
	}
	r := bytes.NewReader(p[xzHeader:])
	var out bytes.Buffer
	for blocks := 0; ; blocks++ {
		size, err := r.ReadByte()
		if err != nil {
			return nil, fmt.Errorf("%w: no index", errXZ)
		}
		if size == 0 { // the index begins: it repeats the data of the blocks
			return out.Bytes(), nil
		}
		if blocks == maxBlocks {
			return nil, fmt.Errorf("%w: more than %d blocks", errXZ, maxBlocks)
		}
		if err := block(r, size, newCheck(), &out, limit); err != nil {
			return nil, err
		}
	}
}

// streamHeader checks the stream header (section 2.1.1 of the format) and returns the constructor of the hash for block
// contents.
func streamHeader(p []byte) (func() hash.Hash, error) {
	if len(p) < xzHeader || !bytes.HasPrefix(p, []byte("\xfd7zXZ\x00\x00")) ||
		crc32.ChecksumIEEE(p[6:8]) != binary.LittleEndian.Uint32(p[8:]) {
		return nil, fmt.Errorf("%w: no stream header", errXZ)
	}
	switch p[7] {
	case 0x00:
		return func() hash.Hash { return nil }, nil
	case 0x01:
		return func() hash.Hash { return crc32.NewIEEE() }, nil
	case 0x04:
		return func() hash.Hash { return crc64.New(crc64.MakeTable(crc64.ECMA)) }, nil
	case 0x0a:
		return sha256.New, nil
	}
	return nil, fmt.Errorf("%w: check of type %d", errXZ, p[7])
}

// block decompresses a block (section 3) and appends its content to out. size is the first byte of its header, which is
// already read.
func block(r *bytes.Reader, size byte, check hash.Hash, out *bytes.Buffer, limit int) error {
	dictionary, err := blockHeader(r, size)
	if err != nil {
		return err
	}
	start := out.Len()
	stored, content, err := chunks(*r, limit-start)
	if err != nil {
		return err
	}
	p := make([]byte, stored+(-stored)&3) // with the padding to four bytes
	if _, err := io.ReadFull(r, p); err != nil {
		return fmt.Errorf("%w: %w", errXZ, err)
	}
	// No match in the block can be farther back than the block's content.
	dictionary = max(min(dictionary, content), lzma.MinDictCap)
	z, err := lzma.Reader2Config{DictCap: dictionary}.NewReader2(bytes.NewReader(p[:stored]))
	if err != nil {
		return fmt.Errorf("%w: %w", errXZ, err)
	}
	if _, err := out.ReadFrom(io.LimitReader(z, int64(content)+1)); err != nil {
		return fmt.Errorf("%w: %w", errXZ, err)
	}
	if out.Len()-start != content {
		return fmt.Errorf("%w: block of %d bytes, not %d", errXZ, out.Len()-start, content)
	}
	return compare(r, check, out.Bytes()[start:])
}

// blockHeader reads the rest of a block header (section 3.1) and returns the dictionary's size in bytes. It skips the
// optional sizes.
func blockHeader(r *bytes.Reader, size byte) (int, error) {
	p := make([]byte, (int(size)+1)*4)
	p[0] = size
	if _, err := io.ReadFull(r, p[1:]); err != nil {
		return 0, fmt.Errorf("%w: block header: %w", errXZ, err)
	}
	end := len(p) - 4
	if crc32.ChecksumIEEE(p[:end]) != binary.LittleEndian.Uint32(p[end:]) {
		return 0, fmt.Errorf("%w: block header's checksum", errXZ)
	}
	flags, rest := p[1], p[2:end]
	if flags&0x3f != 0 {
		return 0, fmt.Errorf("%w: block flags %#x", errXZ, flags)
	}
	for _, present := range []byte{0x40, 0x80} {
		if flags&present != 0 {
			_, n := binary.Uvarint(rest)
			rest = rest[max(n, 0):]
		}
	}
	if len(rest) < 3 || rest[0] != filterLZMA2 || rest[1] != 1 {
		return 0, fmt.Errorf("%w: filter", errXZ)
	}
	n, err := lzma.DecodeDictCap(rest[2])
	if err != nil || n > maxDictionary {
		return 0, fmt.Errorf("%w: dictionary of %d bytes", errXZ, n)
	}
	return int(n), nil
}

// chunks reads the headers of the LZMA2 chunks from the reader's position to the end marker. It returns the size of all
// chunks with their headers, and the size of their decompressed content, in bytes. The error is errXZ, also if there is
// no content or if it has more than limit bytes.
func chunks(r bytes.Reader, limit int) (stored, content int, err error) {
	const (
		end, uncompressed = 0, 2 // 1 and 2 are uncompressed chunks
		lzmaChunk         = 0x80
		withProperties    = 0xc0
		highSize          = 0x1f // these bits are part of the content's size
	)
	before := r.Len()
	for {
		control, err := r.ReadByte()
		if err != nil {
			return 0, 0, fmt.Errorf("%w: chunk: %w", errXZ, err)
		}
		var header [5]byte
		size := 2
		switch {
		case control == end && content == 0:
			return 0, 0, fmt.Errorf("%w: block without content", errXZ)
		case control == end:
			return before - r.Len(), content, nil
		case control >= withProperties:
			size = 5
		case control >= lzmaChunk:
			size = 4
		case control > uncompressed:
			return 0, 0, fmt.Errorf("%w: chunk of type %#x", errXZ, control)
		}
		if _, err := io.ReadFull(&r, header[:size]); err != nil {
			return 0, 0, fmt.Errorf("%w: chunk: %w", errXZ, err)
		}
		data := int(binary.BigEndian.Uint16(header[:])) + 1
		content += data
		if control >= lzmaChunk {
			content += int(control&highSize) << 16
			data = int(binary.BigEndian.Uint16(header[2:])) + 1
		}
		if content > limit {
			return 0, 0, fmt.Errorf("%w: more than %d bytes", errXZ, limit)
		}
		if data > r.Len() {
			return 0, 0, fmt.Errorf("%w: chunk of %d bytes", errXZ, data)
		}
		if _, err := r.Seek(int64(data), io.SeekCurrent); err != nil {
			return 0, 0, fmt.Errorf("%w: chunk: %w", errXZ, err)
		}
	}
}

// compare reads the check value of a block and compares it with the hash of the content. check is nil if the stream has
// no check values.
func compare(r *bytes.Reader, check hash.Hash, content []byte) error {
	if check == nil {
		return nil
	}
	stored := make([]byte, check.Size())
	if _, err := io.ReadFull(r, stored); err != nil {
		return fmt.Errorf("%w: check: %w", errXZ, err)
	}
	_, _ = check.Write(content) // a hash's Write never fails
	sum := check.Sum(nil)
	if len(stored) <= 8 { // CRCs are stored little-endian
		for i, j := 0, len(sum)-1; i < j; i, j = i+1, j-1 {
			sum[i], sum[j] = sum[j], sum[i]
		}
	}
	if !bytes.Equal(sum, stored) {
		return fmt.Errorf("%w: checksum of the content", errXZ)
	}
	return nil
}
