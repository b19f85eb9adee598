package observe

import (
	"encoding/binary"
	"pg_stat_backtrace/ptrace/snapshot"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestParseRing parses a hand-made sample, and its beginnings after truncation.
func TestParseRing(t *testing.T) {
	record := makeSample(t, 16)
	ring := slices.Concat([]byte{2, 0, 0, 0, 0, 0, 16, 0, 1, 1, 1, 1, 1, 1, 1, 1}, record)
	s, err := parseRing(ring)
	if err != nil || s == nil || len(s.stack) != 16 || len(s.registers) != snapshot.PRStatusSize {
		t.Fatalf("%+v, %v", s, err)
	}
	for n := range ring {
		if s, err := parseRing(ring[:n]); s != nil || err == nil {
			t.Errorf("%d bytes: %+v, %v", n, s, err)
		}
	}
}

// needSampling skips a test of running threads if they cannot be sampled.
func needSampling(t testing.TB) {
	t.Helper()
	if perfRegisters == nil {
		t.Skip("no sampling on this architecture")
	}
}

// makeSample makes a record as the kernel does.
func makeSample(t testing.TB, stack int) []byte {
	t.Helper()
	needSampling(t)
	p := binary.NativeEndian.AppendUint32(nil, unix.PERF_RECORD_SAMPLE)
	p = append(p, 0, 0, 0, 0)
	p = binary.NativeEndian.AppendUint64(p, 0)
	p = binary.NativeEndian.AppendUint64(p, unix.PERF_SAMPLE_REGS_ABI_64)
	for i := range perfRegisters {
		p = binary.NativeEndian.AppendUint64(p, uint64(i))
	}
	p = binary.NativeEndian.AppendUint64(p, uint64(stack+8))
	p = append(p, make([]byte, stack+8)...)
	p = binary.NativeEndian.AppendUint64(p, uint64(stack))
	binary.NativeEndian.PutUint16(p[6:], uint16(len(p)))
	return p
}

func FuzzParseRing(f *testing.F) {
	f.Add(makeSample(f, 16))
	f.Add([]byte{9, 0, 0, 0, 0, 0, 8, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		if s, err := parseRing(p); (s != nil) != (err == nil) {
			t.Errorf("%v and %v", s, err)
		}
	})
}
