package state_test

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"pg_stat_backtrace/worker/pg/state"
)

const base = 0x7f0000000000

// segment is shared memory of version 18 with slots for these processes and generations.
func segment(latest uint64, slots ...[2]uint64) []byte {
	const index, at, slotSize, generation = 0x9748, 0x20000, 128, 104
	m := make([]byte, 0x40000)
	order := binary.NativeEndian
	order.PutUint32(m, 679834894)
	copy(m[0x5000:], "ProcSignal") // a name that no address follows
	copy(m[0x5030:], "else")
	copy(m[index:], "ProcSignal")
	order.PutUint64(m[index+48:], base+at)
	order.PutUint64(m[index+56:], uint64(8+slotSize*len(slots)))
	order.PutUint64(m[at:], latest)
	for i, s := range slots {
		order.PutUint32(m[at+8+i*slotSize:], uint32(s[0]))
		order.PutUint64(m[at+8+i*slotSize+generation:], s[1])
	}
	return m
}

func reader(m []byte) state.BarrierMemory {
	return func(addr uint64, p []byte) error {
		if addr < base || addr-base > uint64(len(m)) || copy(p, m[addr-base:]) < len(p) {
			return io.ErrUnexpectedEOF
		}
		return nil
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	const unused = ^uint64(0)
	for _, tt := range []struct {
		name  string
		slots [][2]uint64
		want  []int
	}{
		{"all have absorbed it", [][2]uint64{{101, 7}, {0, unused}, {103, 7}}, nil},
		{"two are late", [][2]uint64{{101, 6}, {102, 7}, {103, 1}}, []int{101, 103}},
		{"an ended process is not late", [][2]uint64{{0, 3}, {102, 7}}, nil},
		{"a new process is not late", [][2]uint64{{101, 8}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := segment(7, tt.slots...)
			got, err := state.PendingBarriers(18, reader(m), state.SharedArea{Start: base, End: base + uint64(len(m))})
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

func TestUnknownMemory(t *testing.T) {
	t.Parallel()
	good := segment(7, [2]uint64{101, 6})
	for _, tt := range []struct {
		name   string
		major  int
		change func(m []byte) []byte
		want   error
	}{
		{"a version without barriers", 14, func(m []byte) []byte { return m }, state.ErrBarrierVersion},
		{"a later version", 99, func(m []byte) []byte { return m }, state.ErrBarrierVersion},
		{"the slots of another version", 15, func(m []byte) []byte { return m }, state.ErrNoBarriers},
		{"no header", 18, func(m []byte) []byte { m[0]++; return m }, state.ErrNoBarriers},
		{"no such name", 18, func(m []byte) []byte { m[0x9748]++; return m }, state.ErrNoBarriers},
		{"slots outside", 18, func(m []byte) []byte { m[0x9748+53] = 0xff; return m }, state.ErrNoBarriers},
		{"a negative process id", 18, func(m []byte) []byte { m[0x2000b] = 0xff; return m }, state.ErrNoBarriers},
		{"a short segment", 18, func(m []byte) []byte { return m[:2] }, state.ErrNoBarriers},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := tt.change(slices.Clone(good))
			_, err := state.PendingBarriers(tt.major, reader(m), state.SharedArea{Start: base, End: base + uint64(len(m))})
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	_, err := state.PendingBarriers(18, reader(nil), state.SharedArea{Start: base, End: base + 8})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("memory that cannot be read: got %v", err)
	}
}
