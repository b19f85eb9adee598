package naming

import (
	"bytes"
	"debug/elf"
	"slices"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

// TestVariablesBounded checks that all variables of a program together are bounded. The segments of a hostile file may
// lie at the same addresses.
func TestVariablesBounded(t *testing.T) {
	large := imagetest.Program{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Vaddr: 0x1000, Memsz: maxVariables / 2}
	readOnly, small := large, large
	readOnly.Flags, small.Memsz = elf.PF_R, 4096
	f := imagetest.File{
		Type: elf.ET_EXEC, Machine: elf.EM_X86_64, Programs: []imagetest.Program{readOnly, small, large, large, large, small},
	}
	img, err := elfimage.Open(bytes.NewReader(f.Bytes()), "hostile")
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int
	left := uint64(maxVariables)
	for range 2 { // a process may have the image twice
		for _, s := range variables(img, 0, func(_ uint64, p []byte) (int, error) { return len(p), nil }, &left) {
			sizes = append(sizes, len(s.Data))
		}
	}
	if want := []int{4096, maxVariables / 2, 4096, 4096, 4096}; !slices.Equal(sizes, want) {
		t.Errorf("%d bytes, not %d", sizes, want)
	}
}
