package capture

import (
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
)

// TestUnlinked walks stacks whose innermost function has its return address in the link register, with the two
// registers that are known of a thread that sleeps: its caller is found by its call. What is found is as with all
// registers.
func TestUnlinked(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(cores, "*.core.xz"))
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".core.xz")
		machine, _, _ := strings.Cut(name, "-")
		core, sp, mem := openCore(t, name)
		full := core.Threads[0].Registers
		var few arch.Registers
		for _, reg := range []int{core.Arch.PC, core.Arch.SP} {
			v, _ := full.Get(reg)
			few.Set(reg, v)
		}
		u := unwind.Unwinder{Arch: core.Arch}
		want, _ := u.Unwind(nil, full, mem, coreSpace{space: sp, mem: mem})
		got, _ := u.Unwind(nil, few, mem, coreSpace{space: sp, mem: mem})
		if len(got) > 1 && got[1].Method == unwind.ByCall {
			found[machine]++
			for i := range min(len(got), len(want)) {
				if got[i].PC != want[i].PC || i < len(got)-1 && got[i].CFA != want[i].CFA {
					t.Errorf("%s: frame %d: %+v, not %+v", name, i, got[i], want[i])
				}
			}
			if len(got) > len(want) {
				t.Errorf("%s: %d frames instead of %d", name, len(got), len(want))
			}
		}
	}
	figure.Printf(t, "callers found by their call: %v of %d core files", found, len(files))
	for _, machine := range []string{"aarch64", "riscv64", "s390x"} {
		if found[machine] < 5 {
			t.Errorf("%s: %d", machine, found[machine])
		}
	}
	if found["x86_64"] > 0 {
		t.Error("on x86_64 no call leaves the return address in a register")
	}
}
