package dwarf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pg_stat_backtrace/unwind/budget"
)

// sharingUnits makes count units of version 4. Each has the attributes of offsets(i): its abbreviations and its line table.
func sharingUnits(count int, offsets func(i int) (abbrev, stmt uint32)) []byte {
	var info bytes.Buffer
	for i := range count {
		abbrev, stmt := offsets(i)
		u := binary.LittleEndian.AppendUint16(nil, 4)
		u = append(binary.LittleEndian.AppendUint32(u, abbrev), 8, 1)
		u = binary.LittleEndian.AppendUint32(u, stmt)
		u = binary.LittleEndian.AppendUint64(u, uint64(0x1000+i*16))
		u = binary.LittleEndian.AppendUint64(u, 16)
		info.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(u))))
		info.Write(u)
	}
	return info.Bytes()
}

// root1 is the declaration of those units: statement list, low_pc, high_pc.
var root1 = []byte{1, byte(tagCompileUnit), 0, byte(attrStmtList), 0x17, byte(attrLowPC), 0x01, byte(attrHighPC), 0x07, 0, 0}

// TestEffort: the cost of many units that share one table, or whose tables overlap, is bounded, and the error is
// reported.
func TestEffort(t *testing.T) {
	const count, long = 400, 256 << 10
	one := func(int) (uint32, uint32) { return 0, 0 }
	// Tables that begin at different places and end at the same one.
	overlapping := func(i int) (uint32, uint32) { return uint32(i * len(root1)), uint32(i) }
	padding := bytes.Repeat([]byte{0xff, 0xff, 3, 0x34, 0, 0, 0}, long/7)
	header := append([]byte{1, 1, 1, 0xff, 1, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0}, "a.c\x00\x00\x00\x00\x00"...)
	program := append([]byte{0, 9, 2}, binary.LittleEndian.AppendUint64(nil, 0x1000)...)
	program = append(append(program, bytes.Repeat([]byte{14}, long)...), 0, 1, 1)
	lines := lineTable(header, program)
	flags := append([]byte{1, byte(tagCompileUnit), 1, byte(attrStmtList), 0x17, byte(attrLowPC), 0x01, byte(attrHighPC), 0x07},
		bytes.Repeat([]byte{0x34, 0x19}, 4000)...) // attributes without bytes
	for name, parts := range map[string]map[string][]byte{
		"one line program": {".debug_abbrev": append(root1, 0), ".debug_info": sharingUnits(count, one), ".debug_line": lines},
		"overlapping abbreviations": {
			".debug_abbrev": append(append(bytes.Repeat(root1, count), padding...), 0), ".debug_info": sharingUnits(count, overlapping),
		},
		"attributes without bytes": {
			".debug_abbrev": append(flags, 0, 0, 0), ".debug_info": sharingUnits(100_000, one),
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := fromBytes(parts, nil)
			d.cache = NewCache(1 << 10) // so that nothing is kept
			d.effort = budget.NewEffort()
			const limit = 16 << 20
			if err := d.charge(budget.Work.Of(0)-limit, "the test"); err != nil {
				t.Fatal(err)
			}
			reports := 0
			d.options.Report = func(err error) {
				if errors.Is(err, budget.ErrExceeded) {
					reports++
				}
			}
			failed := d.Load()
			for i := 0; i < count && !errors.Is(failed, budget.ErrExceeded); i++ {
				if _, failed = d.Frames(uint64(0x1000 + i*16)); failed == nil && d.units[i].hasStmt {
					_, failed = d.readLines(&d.units[i]) // as after the cache dropped it
				}
			}
			if !errors.Is(failed, budget.ErrExceeded) || reports == 0 {
				t.Fatalf("error %v, %d reports", failed, reports)
			}
		})
	}
}
