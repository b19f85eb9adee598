package capture

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/corefile"
)

// registers returns the registers of a core file's first thread: all of them, and only the two that are known for a
// sleeping thread.
func registers(core *corefile.Core) (full, few arch.Registers) {
	full = core.Threads[0].Registers
	for _, reg := range []int{core.Arch.PC, core.Arch.SP} {
		v, _ := full.Get(reg)
		few.Set(reg, v)
	}
	return full, few
}

// TestUnlinked walks stacks whose innermost function has its return address in the link register. The walk has only
// the two registers that are known for a sleeping thread, and finds the caller by its call. The result must equal the
// walk with all registers.
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
		full, few := registers(core)
		u := unwind.Unwinder{Arch: core.Arch}
		want, _ := u.Unwind(nil, full, mem, space{Space: sp, mem: mem})
		got, _ := u.Unwind(nil, few, mem, space{Space: sp, mem: mem})
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

// overlaid is memory with some words replaced.
type overlaid struct {
	cfi.Memory

	words map[uint64]uint64
}

func (o overlaid) Word(addr uint64) (uint64, bool) {
	if word, ok := o.words[addr]; ok {
		return word, true
	}
	return o.Memory.Word(addr)
}

// TestUnlinkedInDoubt gives a stack a second possible caller of the function whose return address is unknown. The
// caller comes from another place on the same stack. With two candidates, the unwinder must take neither.
func TestUnlinkedInDoubt(t *testing.T) {
	t.Parallel()
	const name = "riscv64-cfi"
	core, sp, mem := openCore(t, name)
	full, few := registers(core)
	u := unwind.Unwinder{Arch: core.Arch}
	all, _ := u.Unwind(nil, full, mem, space{Space: sp, mem: mem})
	interrupted := 1 + slices.IndexFunc(all[1:], func(f unwind.Frame) bool { return f.Exact })
	if interrupted < 1 || all[interrupted].PC != all[0].PC || len(all) < interrupted+4 {
		t.Fatalf("another stack: %+v", all)
	}
	from, to := all[interrupted].CFA, all[0].CFA
	other := overlaid{mem, make(map[uint64]uint64)}
	both := overlaid{mem, make(map[uint64]uint64)}
	for at := from; at < all[interrupted+3].CFA; at += uint64(core.Arch.AddrSize) {
		word, _ := mem.Word(at)
		there, _ := mem.Word(at - from + to)
		other.words[at-from+to] = word
		if !slices.ContainsFunc(all[:interrupted], func(f unwind.Frame) bool { return f.PC == there }) {
			both.words[at-from+to] = word
		}
	}
	second := func(m cfi.Memory) unwind.Frame {
		got, _ := u.Unwind(nil, few, m, space{Space: sp, mem: mem})
		if len(got) < 2 {
			return unwind.Frame{}
		}
		return got[1]
	}
	if f := second(mem); f.Method != unwind.ByCall || f.PC != all[1].PC {
		t.Errorf("the one: %+v", f)
	}
	if f := second(other); f.Method != unwind.ByCall || f.PC != all[interrupted+1].PC {
		t.Errorf("the other: %+v", f)
	}
	if f := second(both); f.Method == unwind.ByCall {
		t.Errorf("both: %+v", f)
	}
}
