package golang

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"pg_stat_backtrace/unwind/elfimage"
)

// flat is a source that begins at address 0.
type flat []byte

func (s flat) Bytes(addr, n uint64) ([]byte, error) {
	if addr > uint64(len(s)) || n > uint64(len(s))-addr {
		return nil, errors.New("outside")
	}
	return s[addr:][:n:n], nil
}

// FuzzTable looks up addresses in damaged tables. Look-ups must end without panic, with frames or an error.
func FuzzTable(f *testing.F) {
	for _, s := range smalls {
		data, base := s.build()
		f.Add(data, s.order == smallOrder(binary.BigEndian), base)
	}
	f.Fuzz(func(t *testing.T, data []byte, big bool, base uint64) {
		var order binary.ByteOrder = binary.LittleEndian
		if big {
			order = binary.BigEndian
		}
		table, err := open(flat(data), order, 0, uint64(len(data)))
		if (table == nil) == (err == nil) {
			t.Fatalf("table %v, error %v", table, err)
		}
		if err != nil {
			return
		}
		table.base = base
		for i := range min(table.Functions(), 16) {
			fn, err := table.Function(i)
			if fn == nil && err == nil {
				t.Fatalf("function %v, error %v", fn, err)
			}
			if err != nil {
				continue
			}
			for _, addr := range []uint64{fn.Entry, fn.Entry + 1, fn.End - 1} {
				frames, err := table.Frames(addr)
				if len(frames) == 0 && err == nil {
					t.Fatalf("%#x: neither frames nor an error", addr)
				}
				_, _ = fn.SPDelta(addr)
			}
		}
	})
}

// FuzzFind looks for the table in damaged images.
func FuzzFind(f *testing.F) {
	if exe, err := os.ReadFile("/proc/self/exe"); err == nil {
		f.Add(exe[:4096])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := elfimage.Open(bytes.NewReader(data), "fuzz")
		if err != nil {
			return
		}
		table, err := NewTable(m)
		if (table == nil) == (err == nil) {
			t.Fatalf("table %v, error %v", table, err)
		}
	})
}
