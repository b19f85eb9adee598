package inflate

import (
	"encoding/binary"
	"fmt"
)

// symbols expands a block with codes until op has reached outLimit, the block has ended, or the input must be read on.
//
//nolint:gocognit // it is one loop whose variables stay in registers: this is where the time goes
func (r *Reader) symbols() error {
	safe, in, out, lit, dist := r.safe(), r.in, r.out, &r.lit, &r.dist
	bits, ip, n, op := r.bits, r.ip, r.n, r.op
	var stop uint32 // the entry at which it ended
	for op < outLimit && ip < safe {
		bits, ip, n = refill(in, bits, ip, n)
		e := lit[bits&(1<<litBits-1)]
		if e&kindLiteral != 0 {
			out[op&(outSize-1)], op = byte(e>>16), op+1
			bits, n = bits>>(e&63), n-uint64(e)
			e = lit[bits&(1<<litBits-1)]
			if e&kindLiteral != 0 {
				out[op&(outSize-1)], op = byte(e>>16), op+1
				bits, n = bits>>(e&63), n-uint64(e)
				e = lit[bits&(1<<litBits-1)]
				if e&kindLiteral != 0 {
					out[op&(outSize-1)], op = byte(e>>16), op+1
					bits, n = bits>>(e&63), n-uint64(e)
					continue
				}
			}
		}
		if e&kindSpecial != 0 {
			if e&kindTable != 0 {
				e = lit[uint64(e>>16)+low(bits>>litBits, e>>8&15)]
			}
			if e&kindLiteral != 0 {
				out[op&(outSize-1)], op = byte(e>>16), op+1
				bits, n = bits>>(e&63), n-uint64(e)
				continue
			}
			if e&kindSpecial != 0 {
				stop = e
				break
			}
		}
		length := int(e>>16) + int(low(bits, e)>>(e>>8&15))
		bits, n = bits>>(e&63), n-uint64(e)
		if n&63 < maxCode+13 {
			bits, ip, n = refill(in, bits, ip, n)
		}
		e = dist[bits&(1<<distBits-1)]
		if e&kindTable != 0 {
			e = dist[uint64(e>>16)+low(bits>>distBits, e>>8&15)]
		}
		distance := int(e>>16) + int(low(bits, e)>>(e>>8&15))
		bits, n = bits>>(e&63), n-uint64(e)
		if e&kindSpecial != 0 || distance > op {
			stop = invalid
			break
		}
		end, from := op+length, op-distance
		if distance < 8 {
			op, from = near(out, op, from)
		}
		spread(out, op, from, end)
		op = end
	}
	r.bits, r.ip, r.n, r.op = bits, ip, n&63, op
	return r.stopped(stop)
}

// safe returns up to where a round of symbols may begin: where all that it may take is there, or, at the end of the
// input, a little behind that, where zeros follow.
func (r *Reader) safe() int {
	if r.eof {
		return r.end + 8
	}
	return r.end - stepInput
}

// stopped ends a block, or says why it cannot be read.
func (r *Reader) stopped(stop uint32) error {
	switch {
	case stop == 0:
		return nil
	case stop&kindEnd != 0:
		r.take(uint64(stop & 63))
		r.endBlock()
		return nil
	default:
		return fmt.Errorf("%w: no code, or a match before the start", ErrCorrupt)
	}
}

// low returns the low bits of v, as many as the low six bits of n say.
func low(v uint64, n uint32) uint64 { return v &^ (^uint64(0) << (n & 63)) }

// near copies what is less than 8 bytes before op: the first bytes are right, as many as the distance, and then there
// are twice as many to be repeated.
//
//go:noinline
func near(out *outBuffer, op, from int) (int, int) {
	for op-from < 8 {
		n := op - from
		binary.LittleEndian.PutUint64(out[op&(outSize-1):], binary.LittleEndian.Uint64(out[from&(outSize-1):]))
		op += n
	}
	return op, from
}

// spread copies 16 bytes at a time until end is reached, from 8 bytes before or farther.
func spread(out *outBuffer, op, from, end int) {
	for ; op < end; op, from = op+16, from+16 {
		binary.LittleEndian.PutUint64(out[op&(outSize-1):], binary.LittleEndian.Uint64(out[from&(outSize-1):]))
		binary.LittleEndian.PutUint64(out[op&(outSize-1)+8:], binary.LittleEndian.Uint64(out[from&(outSize-1)+8:]))
	}
}
