package plan

import (
	"encoding/binary"
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

// TestCallsOnAArch64 has the instructions before return addresses in two builds of PostgreSQL (16.14 and 17.10, gcc), and the
// same with one register changed. Only those of ExecProcNode are calls of a node.
func TestCallsOnAArch64(t *testing.T) {
	t.Parallel()
	const filler, rescan = 0xb4000060, 0x97ff2957 // cbz x0; bl ExecReScan
	for name, one := range map[string]struct {
		words []uint32
		want  bool
	}{
		"ExecNestLoop, outer":       {[]uint32{0xf94036e0, filler, 0xaa1703e0, rescan, 0xf9400ee1, 0xaa1703e0, 0xd63f0020}, true},
		"ExecMergeAppend, an input": {[]uint32{0xf94036a0, filler, 0xaa1503e0, rescan, 0xf9400ea1, 0xaa1503e0, 0xd63f0020}, true},
		"the argument first":        {[]uint32{rescan, 0xaa1703e0, 0xf9400ee1, 0xd63f0020}, true},
		"without a move":            {[]uint32{filler, 0xf9400c01, 0xd63f0020}, true},
		"another argument":          {[]uint32{rescan, 0xf9400ee1, 0xaa1503e0, 0xd63f0020}, false},
		"another register":          {[]uint32{rescan, 0xf9400ee1, 0xaa1703e0, 0xd63f0040}, false},
		"another field":             {[]uint32{rescan, 0xf94012e1, 0xaa1703e0, 0xd63f0020}, false},
		"x0 written again":          {[]uint32{rescan, 0xf9400ee1, 0xf9400400, 0xd63f0020}, false},
		"base written between":      {[]uint32{rescan, 0xaa1703e0, 0xf9400417, 0xf9400ee1, 0xd63f0020}, false},
		"ExecClearTuple":            {[]uint32{0xaa0003f3, 0xf9400401, 0xf9400c21, 0xd63f0020}, false},
		"ExecMergeAppend, slot":     {[]uint32{0xf9403e73, 0xf9400660, 0xf9400c01, 0xaa1303e0, 0xd63f0020}, false},
		"CteScanNext, slot":         {[]uint32{filler, 0xf9400680, 0xf9400c01, 0xaa1403e0, 0xd63f0020}, false},
		"ExecAppend, choose":        {[]uint32{filler, 0xf940ae61, 0xaa1303e0, 0xd63f0020}, false},
		"ExecLimit, slot":           {[]uint32{0xf9408a60, 0xf9400401, 0xf9401c22, 0xaa1403e1, 0xd63f0040}, false},
		"a branch between":          {[]uint32{0xf9400ee1, 0xaa1703e0, filler, 0xd63f0020}, false},
		"bl to ExecProcNode":        {[]uint32{0xaa1803e0, 0x94000000 | 1}, true},
		"bl to another function":    {[]uint32{0xaa1803e0, 0x94000000 | 33}, false},
	} {
		code := make([]uint32, 64)
		const at = 16 // the return address
		copy(code[at-len(one.words):], one.words)
		// ExecProcNode follows, as both builds have it.
		copy(code[at:], []uint32{
			0xa9be7bfd, 0x910003fd, 0xf9000bf3, 0xaa0003f3, 0xf9403401, 0xb4000041, 0x97ffcf00, 0xaa1303e0, 0xf9400e61,
			0xf9400bf3, 0xa8c27bfd, 0xd61f0020,
		})
		// ExecClearTuple, with a jump.
		copy(code[at+32:], []uint32{0xf9400401, 0xf9400c21, 0xd61f0020})
		if got := callOnA64(t, code, at); got != one.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// callOnA64 reports whether the instruction before a word calls a node.
func callOnA64(t *testing.T, code []uint32, at uint64) bool {
	t.Helper()
	const start = 1 << 20
	g := &garbage{start: start, data: make([]byte, pageSize)}
	for i, w := range code {
		binary.LittleEndian.PutUint32(g.data[i*a64Length:], w)
	}
	l, _ := layout.Of(newestMajor)
	s := &Stack{A64: true, Code: []Range{{start, start + pageSize}}, Frames: []Frame{{PC: start + at*a64Length}}}
	r := &reader{pages: newPages(g), structures: &structures{Layout: l}, stack: s}
	return r.callsNode(0)
}
