package cluster

import (
	"encoding/binary"
	"errors"
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

// TestParseControl has files of known and unknown formats, and files that are cut.
func TestParseControl(t *testing.T) {
	file := func(version uint32) []byte {
		data := make([]byte, 8192)
		binary.NativeEndian.PutUint64(data, 7<<60)
		binary.NativeEndian.PutUint32(data[layout.Control.Version:], version)
		binary.NativeEndian.PutUint32(data[layout.Control.Timeline:], 3)
		return data
	}
	for version, timeline := range map[uint32]uint32{1300: 3, 1800: 3, 1905: 3, 960: 0, 2000: 0} {
		c, err := parseControl(file(version))
		if err != nil || c.ID() != "8070450532247928832" || c.Timeline != timeline {
			t.Errorf("version %d: %+v, %v", version, c, err)
		}
	}
	for _, data := range [][]byte{nil, make([]byte, 10), make([]byte, 8192), file(1300)[:50]} {
		if c, err := parseControl(data); !errors.Is(err, ErrControl) {
			t.Errorf("%d bytes: %+v, %v", len(data), c, err)
		}
	}
}
