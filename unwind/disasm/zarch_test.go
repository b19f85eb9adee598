package disasm_test

import (
	"fmt"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

// TestFloatingNumbers checks that floating point registers, which can hold general ones, have the numbers of package
// arch.
func TestFloatingNumbers(t *testing.T) {
	for f := range byte(16) {
		want := slices.Index(arch.S390X.RegisterNames, fmt.Sprintf("f%d", f))
		to, err := disasm.DecodeZArch([]byte{0xb3, 0xc1, 0x00, f<<4 | 7})    // ldgr
		from, also := disasm.DecodeZArch([]byte{0xb3, 0xcd, 0x00, 7<<4 | f}) // lgdr
		if err != nil || also != nil || to.Op != disasm.Add || to.Rd != want || to.Rn != 7 || from.Rd != 7 ||
			from.Rn != want {
			t.Errorf("f%d: not %d: %+v, %+v", f, want, to, from)
		}
	}
}
