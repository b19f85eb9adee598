package elfimage_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

// relocation is an entry that contains its addend.
type relocation struct{ offset, symbol, addend uint64 }

// importing makes an image whose relocations name symbols.
func importing(t *testing.T, symbols []imagetest.Symbol, relocations ...relocation) *elfimage.Image {
	t.Helper()
	var p []byte
	for _, r := range relocations {
		for _, v := range []uint64{r.offset, r.symbol<<32 | 7, r.addend} {
			p = binary.LittleEndian.AppendUint64(p, v)
		}
	}
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64}
	f.Sections = append(f.SymbolTable(".dynsym", ".dynstr", symbols...), imagetest.Section{
		Name: ".relocations", Flags: elf.SHF_ALLOC, Data: p, Link: ".dynsym", Entsize: 24,
		Type: elf.SHT_RELA, //nolint:misspell // a name
	})
	m, err := elfimage.Open(bytes.NewReader(f.Bytes()), "importing")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestImported checks that a name is returned only for a function's symbol. Package unwind compares the names in real
// files with the output of disassemblers.
func TestImported(t *testing.T) {
	symbols := []imagetest.Symbol{
		{Name: "exit", Type: elf.STT_FUNC, Bind: elf.STB_GLOBAL},
		{Name: "environ", Type: elf.STT_OBJECT, Bind: elf.STB_GLOBAL},
		{Name: "abort", Type: elf.STT_NOTYPE, Bind: elf.STB_WEAK},
		{Name: strings.Repeat("long", 100), Type: elf.STT_FUNC, Bind: elf.STB_GLOBAL},
	}
	m := importing(t, symbols, relocation{0x1000, 1, 0}, relocation{0x1008, 2, 0}, relocation{0x1010, 3, 0},
		relocation{0x1018, 1, 8}, relocation{0x1020, 0, 0}, relocation{0x1028, 99, 0}, relocation{0x1030, 4, 0})
	for slot, want := range map[uint64]string{
		0x1000: "exit", 0x1008: "", 0x1010: "abort", 0x1018: "", 0x1020: "", 0x1028: "", 0x1004: "", 0: "",
		0x1030: strings.Repeat("long", 32),
	} {
		if got := m.Imported(slot); got != want {
			t.Errorf("%#x: %q", slot, got)
		}
	}
}

// TestImportedBounds checks that the data kept of a hostile file is limited.
func TestImportedBounds(t *testing.T) {
	all := make([]relocation, 200_000)
	for i := range all {
		all[i] = relocation{uint64(i) * 8, 1, 0}
	}
	m := importing(t, []imagetest.Symbol{{Name: strings.Repeat("x", 16<<10), Type: elf.STT_FUNC}}, all...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if len(m.Imported(8)) != 128 || m.Imported(8*199_999) != "" {
		t.Errorf("%d bytes, and %q", len(m.Imported(8)), m.Imported(8*199_999))
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}
