package inflate

import "encoding/binary"

// adler is the checksum of RFC 1950 §8.2, of all bytes that were added.
type adler struct {
	// low is the sum of the bytes (without the 1 that it begins with), high the sum of all values that low+1 had.
	low, high uint32
}

const (
	adlerBase = 65521
	// adlerWords is how many words of 8 bytes are summed up at a time: the largest number for which a lane of 16
	// bits can hold the sum of the sums, 255 * n * (n-1) / 2, that is even.
	adlerWords = 22
)

func (a *adler) value() uint32 {
	return a.high<<16 | (a.low+1)%adlerBase
}

// add sums up eight bytes at a time, in lanes of 16 bits: the bytes at even positions in four, the others in four
// more.
func (a *adler) add(p []byte) {
	const lanes = 0x00ff00ff00ff00ff
	low, high := uint64(a.low)+1, uint64(a.high)
	for len(p) >= 8*adlerWords {
		block := (*[8 * adlerWords]byte)(p)
		p = p[8*adlerWords:]
		// even and odd are sums of the bytes, evens and odds those of the values that they had before each word.
		var even, odd, evens, odds uint64
		for i := 0; i < len(block); i += 16 {
			v, w := binary.LittleEndian.Uint64(block[i:]), binary.LittleEndian.Uint64(block[i+8:])
			a, b := v&lanes, v>>8&lanes
			evens += 2*even + a
			odds += 2*odd + b
			even += a + w&lanes
			odd += b + w>>8&lanes
		}
		// A byte counts once for itself and each byte behind it: 8 times for each word behind, and for its own word
		// 8 for the first byte down to 1 for the last.
		high += 8*adlerWords*low + 8*(lanesSum(evens)+lanesSum(odds))
		for i, weight := range [4]uint64{8, 6, 4, 2} {
			high += weight*(even>>(16*i)&0xffff) + (weight-1)*(odd>>(16*i)&0xffff)
		}
		low = (low + lanesSum(even) + lanesSum(odd)) % adlerBase
		high %= adlerBase
	}
	for _, b := range p {
		low += uint64(b)
		high += low
	}
	a.low, a.high = uint32((low+adlerBase-1)%adlerBase), uint32(high%adlerBase)
}

// lanesSum is the sum of the four lanes.
func lanesSum(v uint64) uint64 {
	return v&0xffff + v>>16&0xffff + v>>32&0xffff + v>>48
}
