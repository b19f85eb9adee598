package inflate

import (
	"encoding/binary"
	"fmt"
)

// blockHeader reads what begins a block (RFC 1951 §3.2.3), and its codes.
func (r *Reader) blockHeader() error {
	r.need()
	r.last = r.take(1) == 1
	switch kind := r.take(2); kind {
	case 0:
		return r.storedHeader()
	case 1:
		r.state = inCodes
		return r.fixedCodes()
	case 2:
		r.state = inCodes
		return r.dynamicCodes()
	default:
		return fmt.Errorf("%w: block of type %d", ErrCorrupt, kind)
	}
}

// endBlock goes on behind a block.
func (r *Reader) endBlock() {
	r.state = atBlock
	if r.last {
		r.state = atEnd
	}
}

// storedHeader reads the length of a stored block (RFC 1951 §3.2.4).
func (r *Reader) storedHeader() error {
	r.align(0)
	n, inverse := binary.LittleEndian.Uint16(r.in[r.ip:]), binary.LittleEndian.Uint16(r.in[r.ip+2:])
	r.ip += 4
	if n != ^inverse {
		return fmt.Errorf("%w: stored block of %d bytes, or not %d", ErrCorrupt, n, inverse)
	}
	r.stored, r.state = int(n), inStored
	return nil
}

// copyStored copies what there is of a stored block.
func (r *Reader) copyStored() error {
	n := min(r.stored, outLimit+stepOutput-r.op, max(r.end-r.ip, 0))
	copy(r.out[r.op:], r.in[r.ip:r.ip+n])
	r.op, r.ip, r.stored = r.op+n, r.ip+n, r.stored-n
	switch {
	case r.stored == 0:
		r.endBlock()
	case r.eof && r.ip >= r.end:
		return fmt.Errorf("%w: it ends in a stored block", ErrCorrupt)
	}
	return nil
}

// fixedCodes makes the tables of fixed codes (RFC 1951 §3.2.6).
func (r *Reader) fixedCodes() error {
	if r.fixed {
		return nil
	}
	var lens [288]uint8
	for i := range lens {
		switch {
		case i < 144:
			lens[i] = 8
		case i < 256:
			lens[i] = 9
		case i < 280:
			lens[i] = 7
		default:
			lens[i] = 8
		}
	}
	var dists [32]uint8
	for i := range dists {
		dists[i] = 5
	}
	err := r.setCodes(lens[:], dists[:])
	r.fixed = err == nil
	return err
}

// setCodes makes the tables of both codes.
func (r *Reader) setCodes(lits, dists []uint8) error {
	var c code
	r.fixed = false
	if !c.set(lits) || !c.build(r.lit[:], litBits, litEntries[:]) {
		return fmt.Errorf("%w: code of literals and lengths", ErrCorrupt)
	}
	if !c.set(dists) || !c.build(r.dist[:], distBits, distEntries[:]) {
		return fmt.Errorf("%w: code of distances", ErrCorrupt)
	}
	return nil
}

// lengthOrder is the order of the code lengths of code lengths (RFC 1951 §3.2.7).
var lengthOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// dynamicCodes reads the codes of a block that brings its own (RFC 1951 §3.2.7).
func (r *Reader) dynamicCodes() error {
	lits, dists, count := int(r.take(5))+257, int(r.take(5))+1, int(r.take(4))+4
	if lits > maxLit || dists > maxDist {
		return fmt.Errorf("%w: %d codes of literals and lengths, %d of distances", ErrCorrupt, lits, dists)
	}
	var lens [19]uint8
	for _, symbol := range lengthOrder[:count] {
		r.need()
		lens[symbol] = uint8(r.take(3))
	}
	const index = 7 // the longest that these codes can be
	var entries [len(lens)]uint32
	for i := range entries {
		entries[i] = uint32(i) << 16
	}
	var c code
	var table [1 << index]uint32
	if !c.set(lens[:]) || !c.build(table[:], index, entries[:]) {
		return fmt.Errorf("%w: code of code lengths", ErrCorrupt)
	}
	all := r.lens[:lits+dists]
	for i := 0; i < len(all); {
		r.need()
		e := table[r.bits&(1<<index-1)]
		if e == invalid {
			return fmt.Errorf("%w: code length", ErrCorrupt)
		}
		r.take(uint64(e & 0xff))
		length, times := r.repeat(uint8(e>>16), all[:i])
		if times == 0 || times > len(all)-i {
			return fmt.Errorf("%w: code lengths", ErrCorrupt)
		}
		for range times {
			all[i] = length
			i++
		}
	}
	return r.setCodes(all[:lits], all[lits:])
}

// repeat reads how often which length follows those before; 0 times if there is none to be repeated.
func (r *Reader) repeat(symbol uint8, before []uint8) (length uint8, times int) {
	switch symbol {
	case 16:
		if len(before) == 0 {
			return 0, 0
		}
		return before[len(before)-1], 3 + int(r.take(2))
	case 17:
		return 0, 3 + int(r.take(3))
	case 18:
		return 0, 11 + int(r.take(7))
	default:
		return symbol, 1
	}
}
