package symbolize

import "encoding/binary"

const (
	// maxKeptFrames bounds the addresses of a module that are kept, and maxKeptCalls the calls (inlined or not) at one
	// address.
	maxKeptFrames = maxAnnotations / 2
	maxKeptCalls  = 64
	// encodingOfFrames is the version of the encoded form.
	encodingOfFrames = 1
)

// The flags of an encoded annotation.
const (
	isInlined = 1 << iota
	isDerived
)

// encodeFrames encodes the annotations of addresses for the folder of kept results.
func encodeFrames(all map[uint64][]annotation) []byte {
	p := []byte{encodingOfFrames}
	number := func(v uint64) { p = binary.AppendUvarint(p, v) }
	text := func(s string) {
		number(uint64(len(s)))
		p = append(p, s...)
	}
	for addr, known := range all {
		number(addr)
		number(uint64(len(known)))
		for i := range known {
			a := &known[i]
			text(a.function)
			text(a.file)
			text(a.note)
			number(a.base)
			number(uint64(max(a.line, 0)))
			flags := uint64(0)
			if a.inlined {
				flags |= isInlined
			}
			if a.derived {
				flags |= isDerived
			}
			number(flags)
		}
	}
	return p
}

// framesReader decodes the result of encodeFrames. After an error its methods return zero values only.
type framesReader struct {
	rest   []byte
	failed bool
}

func (r *framesReader) number() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.failed, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *framesReader) text() string {
	n := r.number()
	if n > uint64(len(r.rest)) {
		r.failed, r.rest = true, nil
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

// decodeFrames decodes the annotations of addresses. If the data are damaged or of another version, the map is empty.
// It is never nil.
func decodeFrames(p []byte) map[uint64][]annotation {
	all := make(map[uint64][]annotation)
	if len(p) == 0 || p[0] != encodingOfFrames {
		return all
	}
	r := framesReader{rest: p[1:]}
	for len(r.rest) > 0 {
		addr, calls := r.number(), r.number()
		if calls == 0 || calls > maxKeptCalls || len(all) >= maxKeptFrames {
			return make(map[uint64][]annotation)
		}
		known := make([]annotation, calls)
		for i := range known {
			a := &known[i]
			a.function, a.file, a.note = r.text(), r.text(), r.text()
			a.base, a.line = r.number(), int(r.number())
			flags := r.number()
			a.inlined, a.derived = flags&isInlined != 0, flags&isDerived != 0
		}
		if r.failed {
			return make(map[uint64][]annotation)
		}
		all[addr] = known
	}
	return all
}
