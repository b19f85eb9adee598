package cfi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// Parts of CIEs and FDEs.
var (
	cieAligns = le(uleb(1), sleb(-8), 16)
	fdeShort  = le(uint32(testStart), uint32(testSize)) // udata4
	fdeFull   = le(testStart, testSize)
)

// cieCases are versions, augmentations and sizes of CIEs, valid and malformed.
var cieCases = []struct {
	name   string
	cie    []byte
	fde    []byte
	ok     bool
	signal bool
}{
	{"no augmentation", le(1, 0, cieAligns), fdeFull, true, false},
	{"version 3, long return column", le(3, 0, uleb(1), sleb(-8), uleb(16)), fdeFull, true, false},
	{"version 4", le(4, 0, 8, 0, uleb(1), sleb(-8), uleb(16)), fdeFull, true, false},
	{"version 4, segments", le(4, 0, 8, 4, uleb(1), sleb(-8), uleb(16)), le(uint32(1), fdeFull), true, false},
	{"version 4, other addresses", le(4, 0, 4, 0, uleb(1), sleb(-8), uleb(16)), fdeFull, false, false},
	{"version 2", le(2, 0, cieAligns), fdeFull, false, false},
	{"version 5", le(5, 0, 8, 0, uleb(1), sleb(-8), uleb(16)), fdeFull, false, false},
	{"GCC 2's eh", le(1, "eh\x00", uint64(0x1234), cieAligns), fdeFull, true, false},
	{"z", le(1, "z\x00", cieAligns, uleb(0)), le(fdeFull, uleb(0)), true, false},
	{"zR", le(1, "zR\x00", cieAligns, uleb(1), peUData4), le(fdeShort, uleb(0)), true, false},
	{"zRS", le(1, "zRS\x00", cieAligns, uleb(1), peUData4), le(fdeShort, uleb(0)), true, true},
	{"zSR", le(1, "zSR\x00", cieAligns, uleb(1), peUData4), le(fdeShort, uleb(0)), true, true},
	{
		"zPLR", le(1, "zPLR\x00", cieAligns, uleb(7), peIndir|pePCRel|peSData4, uint32(1), pePCRel|peSData4, peUData4),
		le(fdeShort, uleb(4), uint32(9)), true, false,
	},
	{"zP omitted", le(1, "zPR\x00", cieAligns, uleb(2), peOmit, peUData4), le(fdeShort, uleb(0)), true, false},
	{
		"zP aligned", le(1, "zRP\x00", cieAligns, uleb(15), peUData4, peAligned, 0, 0, 0, 0, 0, uint64(1)),
		le(fdeShort, uleb(0)), true, false,
	},
	{"zRB and zRG", le(1, "zRBG\x00", cieAligns, uleb(1), peUData4), le(fdeShort, uleb(0)), true, false},
	{"unknown letter behind R", le(1, "zR?\x00", cieAligns, uleb(3), peUData4, 1, 2), le(fdeShort, uleb(0)), true, false},
	{
		"augmentation data longer than used", le(1, "zR\x00", cieAligns, uleb(3), peUData4, 1, 2),
		le(fdeShort, uleb(2), 1, 2), true, false,
	},
	{"unknown augmentation", le(1, "armcc+\x00", cieAligns), fdeFull, false, false},
	{"augmentation data short", le(1, "zPR\x00", cieAligns, uleb(2), peUData4, 1), le(fdeShort, uleb(0)), false, false},
	{"augmentation data too long", le(1, "zR\x00", cieAligns, uleb(100), peUData4), le(fdeShort, uleb(0)), false, false},
	{"endless augmentation", le(1, strings.Repeat("z", 40), 0, cieAligns), fdeFull, false, false},
	{"unterminated augmentation", le(1, "zR"), fdeFull, false, false},
	{"return column out of range", le(3, 0, uleb(1), sleb(-8), uleb(1000)), fdeFull, false, false},
	{"no alignments", le(1, 0), fdeFull, false, false},
	{"unknown address encoding", le(1, "zR\x00", cieAligns, uleb(1), 0x0e), le(fdeFull, uleb(0)), false, false},
	{"FDE's data too long", le(1, "zR\x00", cieAligns, uleb(1), peUData4), le(fdeShort, uleb(100)), false, false},
	{"FDE without length", le(1, 0, cieAligns), le(testStart), false, false},
	{"FDE wraps around", le(1, 0, cieAligns), le(testStart, ^uint64(0)), false, false},
}

func TestCIE(t *testing.T) {
	for _, test := range cieCases {
		for _, wide := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s wide %v", test.name, wide), func(t *testing.T) {
				b := &builder{order: binary.LittleEndian, addr: testFrame, wide: wide}
				b.fde(b.cie(test.cie), test.fde)
				table := mustNew(t, Sections{EHFrame: b.section(), Arch: arch.AMD64})
				f, err := table.Find(testStart)
				switch {
				case test.ok && (err != nil || f.Start != testStart || f.End != testEnd || f.Signal != test.signal):
					t.Errorf("%+v, %v", f, err)
				case !test.ok && !errors.Is(err, ErrBadCFI):
					t.Errorf("%+v, %v", f, err)
				}
			})
		}
	}
}

// TestEntries has malformed heads of entries.
func TestEntries(t *testing.T) {
	good := &builder{order: binary.LittleEndian, addr: testFrame}
	off := good.fde(absoluteCIE(good), testStart, testSize, uleb(0))
	sections := map[string][]byte{
		"length beyond the section": le(uint32(100), uint32(0)),
		"reserved length":           le(uint32(0xffff_fff1), uint32(0)),
		"wide length too long":      le(uint32(0xffff_ffff), uint64(1<<63), uint32(0)),
		"wide length cut short":     le(uint32(0xffff_ffff), uint32(0)),
		"cut short":                 le(uint16(1)),
		"no room for an id":         le(uint32(2), uint16(0)),
		"CIE before the section":    le(uint32(8), uint32(1000), uint32(0)),
		"CIE is itself":             le(uint32(8), uint32(4), uint32(0)),
		"CIE is an FDE":             append(le(good.data), le(uint32(20), uint32(good.here()+4-off), full())...),
	}
	for name, data := range sections {
		t.Run(name, func(t *testing.T) {
			table := mustNew(t, Sections{EHFrame: Section{testFrame, data}, Arch: arch.AMD64})
			if _, err := table.Find(testEnd + testSize); !errors.Is(err, ErrBadCFI) {
				t.Error(err)
			}
			for f := range table.FDEs {
				if f.Start != testStart {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// full returns an FDE's addresses, behind the addresses of testStart.
func full() []byte { return le(testEnd+testSize, testSize) }
