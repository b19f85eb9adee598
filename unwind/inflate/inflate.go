// Package inflate expands zlib streams (RFC 1950, RFC 1951) whose expanded size is known beforehand: compressed
// sections of ELF files. It is made for large ones, and for a look-up that waits for them: faster than the readers of
// the standard library and of others, because it knows that the input stands in memory in large pieces and the output
// may run over the place where it is to end.
//
// A stream is expanded as far as is asked for and no further, into pieces that a Reader returns or into one slice.
// Streams are foreign input: a damaged one gives an error, never a panic, and memory is bounded. Accepted is what
// compress/zlib accepts, save that a stream must have the size that was promised.
//
// The package must not know of files or sections.
package inflate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrCorrupt means that a stream is no zlib stream, is damaged, ends early or has another size than promised.
var ErrCorrupt = errors.New("damaged zlib stream")

const (
	// history is how far back a match may reach (RFC 1951 §2).
	history = 32 << 10
	// outSize and inSize are those of the buffers, powers of 2: an index that is cut to them needs no other check.
	outSize, inSize = 128 << 10, 32 << 10
	// outLimit is where a piece ends, or up to stepOutput bytes behind.
	outLimit = outSize - stepOutput
	// inLimit is how far the input buffer is filled.
	inLimit = inSize - 2*stepInput
	// margin is how much of the input must be there, or be known to be its end, when a block begins: a header with
	// its code lengths takes at most 570 bytes. Behind the end there are as many zeros.
	margin = 1 << 10
	// stepInput is what one round of symbols takes of the input at most, stepOutput what it writes: three literals,
	// and a match of 258 bytes with those behind it that are written too many.
	stepInput, stepOutput = 32, 320
)

type (
	inBuffer  [inSize + margin]byte
	outBuffer [outSize + stepOutput]byte
)

// Reader expands one stream, piece by piece. It takes 180 KB until the end, or the first error, has been seen.
type Reader struct {
	src io.Reader
	// in holds input up to end; ip is the next byte that is to be moved to bits. Once eof is set there is no more.
	in      *inBuffer
	ip, end int
	eof     bool
	// bits holds the next n bits of the stream, the first one lowest. Those above are those that follow there, or zero.
	bits, n uint64

	// out holds what has been expanded up to op, at the least the last 32 KB of it.
	out *outBuffer
	op  int
	sum adler
	// size is that of the whole stream, total that of what has been expanded.
	size, total uint64

	state  state
	last   bool // the block is the last one
	stored int  // bytes that a stored block still has
	err    error

	lit  litTable
	dist distTable
	// fixed is set while the tables are those of fixed codes.
	fixed bool
	lens  [maxLit + maxDist]uint8
}

// state is where in a stream a Reader is.
type state uint8

const (
	atStream state = iota
	atBlock
	inStored
	inCodes
	atEnd
)

// NewReader makes a reader of the stream in src, which expands to size bytes. Nothing is read yet.
func NewReader(src io.Reader, size uint64) *Reader { return &Reader{src: src, size: size} }

// Next expands the next piece, some 100 KB, and returns it; it is valid until the next call. After the last one, whose
// checksum has been found to be right, the error is io.EOF. Other errors are ErrCorrupt and src's. They stay, and what
// came before is not to be trusted either.
func (r *Reader) Next() ([]byte, error) {
	if r.err != nil {
		r.src, r.in, r.out = nil, nil, nil
		return nil, r.err
	}
	if r.out == nil {
		r.out = new(outBuffer)
	}
	if r.op > history {
		copy(r.out[:history], r.out[r.op-history:r.op])
		r.op = history
	}
	start := r.op
	r.err = r.fill()
	if r.op > start && (r.err == nil || errors.Is(r.err, io.EOF)) {
		return r.out[start:r.op], nil
	}
	return nil, r.err
}

// pool has readers for streams that are expanded at once.
var pool sync.Pool

// All expands a stream of length bytes to size bytes. Memory is reserved at once only for a size that the length makes
// plausible. The error is ErrCorrupt or src's.
func All(src io.Reader, length, size uint64) ([]byte, error) {
	const plausible = 16
	r, ok := pool.Get().(*Reader)
	if !ok {
		r = &Reader{in: new(inBuffer), out: new(outBuffer)}
	}
	*r = Reader{src: src, size: size, in: r.in, out: r.out}
	defer func() {
		r.src = nil
		pool.Put(r)
	}()
	all := make([]byte, 0, min(size, length*plausible))
	for {
		p, err := r.Next()
		all = append(all, p...)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return all, nil
			}
			return nil, err
		}
	}
}

// fill expands until op has reached outLimit, or a little more; at the end of the stream it returns io.EOF.
func (r *Reader) fill() error {
	start := r.op
	for r.state != atEnd && r.op < outLimit {
		if err := r.step(); err != nil {
			return err
		}
		if r.total+uint64(r.op-start) > r.size {
			return fmt.Errorf("%w: more than %d bytes", ErrCorrupt, r.size)
		}
	}
	r.total += uint64(r.op - start)
	r.sum.add(r.out[start:r.op])
	if r.state != atEnd {
		return nil
	}
	return r.finish()
}

// step goes on with what the stream has next.
func (r *Reader) step() error {
	if !r.eof && r.end-r.ip < margin {
		if err := r.more(); err != nil {
			return err
		}
	}
	err := error(nil)
	switch r.state {
	case atStream:
		err = r.streamHeader()
	case atBlock:
		err = r.blockHeader()
	case inStored:
		err = r.copyStored()
	case inCodes:
		err = r.symbols()
	case atEnd:
	}
	if r.eof && r.ip-int(r.n&63)>>3 > r.end {
		return fmt.Errorf("%w: it ends early", ErrCorrupt)
	}
	return err
}

// more reads input, behind what is left of it.
func (r *Reader) more() error {
	if r.in == nil {
		r.in = new(inBuffer)
	}
	r.align(7)
	r.end = copy(r.in[:], r.in[r.ip:r.end])
	r.ip = 0
	n, err := io.ReadFull(r.src, r.in[r.end:inLimit])
	r.end += n
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		r.eof = true
		clear(r.in[r.end:])
		return nil
	}
	return err
}

// align gives back the whole bytes among the bits, and keeps those of the others that keep has: 7, or 0 to drop them.
func (r *Reader) align(keep uint64) {
	r.ip -= int(r.n&63) >> 3
	r.n &= keep
	r.bits &= 1<<r.n - 1
}

// need makes sure that at least 56 bits are there.
func (r *Reader) need() { r.bits, r.ip, r.n = refill(r.in, r.bits, r.ip, r.n) }

// take takes the next n bits, of which there must be enough.
func (r *Reader) take(n uint64) uint64 {
	v := r.bits & (1<<n - 1)
	r.bits >>= n
	r.n -= n
	return v
}

// refill fills up bits to at least 56, of which only the low six bits of n tell how many there are.
func refill(in *inBuffer, bits uint64, ip int, n uint64) (uint64, int, uint64) {
	return bits | binary.LittleEndian.Uint64(in[ip&(inSize-1):])<<(n&63), ip + int(^n&63)>>3, n | 56
}

// streamHeader reads the two bytes that begin a stream (RFC 1950 §2.2).
func (r *Reader) streamHeader() error {
	r.need()
	method, flags := r.take(8), r.take(8)
	const deflate, dictionary = 8, 0x20
	if method&15 != deflate || method>>4 > 7 || (method<<8|flags)%31 != 0 {
		return fmt.Errorf("%w: it begins with %#02x %#02x", ErrCorrupt, method, flags)
	}
	if flags&dictionary != 0 {
		return fmt.Errorf("%w: it has a preset dictionary", ErrCorrupt)
	}
	r.state = atBlock
	return nil
}

// finish checks the size and the checksum that ends a stream.
func (r *Reader) finish() error {
	if r.total < r.size {
		return fmt.Errorf("%w: %d bytes, not %d", ErrCorrupt, r.total, r.size)
	}
	r.align(0)
	if r.ip+4 > r.end && !r.eof {
		if err := r.more(); err != nil {
			return err
		}
	}
	if r.ip+4 > r.end {
		return fmt.Errorf("%w: it ends early", ErrCorrupt)
	}
	if want := binary.BigEndian.Uint32(r.in[r.ip:]); want != r.sum.value() {
		return fmt.Errorf("%w: checksum %08x, not %08x", ErrCorrupt, r.sum.value(), want)
	}
	return io.EOF
}
