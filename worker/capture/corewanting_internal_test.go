package capture

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// partly is memory of which only a part was copied.
type partly struct {
	cfi.Memory

	low, end uint64
}

func (p partly) Word(addr uint64) (uint64, bool) {
	if addr < p.low || addr >= p.end {
		return 0, false
	}
	return p.Memory.Word(addr)
}

func (p partly) Read(addr uint64, size int) (uint64, bool) {
	if addr < p.low || addr >= p.end {
		return 0, false
	}
	return p.Memory.Read(addr, size)
}

const cores = "../../unwind/corefile/testdata"

// openCore opens a core file of the test data, and its program.
func openCore(t *testing.T, name string) (*corefile.Core, *naming.Space, *corefile.Memory) {
	t.Helper()
	core, err := corefile.Open(bytes.NewReader(unxz(t, filepath.Join(cores, name+".core.xz"))), name)
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(exe, unxz(t, filepath.Join(cores, name+".xz")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &reader{
		core: core, options: CoreOptions{Exe: exe}, modules: make(map[moduleKey]openedFile),
		images: symbolize.NewCache(core.Arch, &symbolize.Sources{Cache: dwarf.NewCache(0)}),
	}
	t.Cleanup(r.close)
	r.findImages()
	sp, backing := r.space()
	return core, sp, corefile.NewMemory(core, backing)
}

// TestWanting walks stacks of functions without unwind tables, in a signal handler on its own stack, while the other
// stack's memory is missing. The walk must first report the missing memory. With Final it continues by other methods.
func TestWanting(t *testing.T) {
	t.Parallel()
	cores, err := filepath.Glob(filepath.Join(cores, "*-barealtstack.core.xz"))
	if err != nil || len(cores) < 3 {
		t.Fatalf("%v, %v", cores, err)
	}
	for _, path := range cores {
		name := strings.TrimSuffix(filepath.Base(path), ".core.xz")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			core, sp, mem := openCore(t, name)
			regs := core.Threads[0].Registers
			at, _ := regs.Get(core.Arch.SP)
			u := unwind.Unwinder{Arch: core.Arch}
			all, _ := u.Unwind(nil, regs, mem, space{Space: sp, mem: mem})
			const alternate = 32768
			_, stop := u.Unwind(nil, regs, partly{mem, at - 256, at + alternate}, space{Space: sp, mem: mem})
			middle := all[len(all)-4] // the function that the signal interrupted, and its caller
			if stop.Reason != unwind.NoMemory || stop.Address > middle.CFA || middle.CFA-stop.Address > 4096 {
				t.Errorf("%s; the other stack is at %#x", stop, middle.CFA)
			}
			u.Final = true
			got, stop := u.Unwind(nil, regs, partly{mem, at - 256, at + alternate}, space{Space: sp, mem: mem})
			if stop.Reason == unwind.NoMemory && len(got) == 1 {
				t.Errorf("nothing else is tried: %s", stop)
			}
		})
	}
}

func unxz(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := xz.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	p, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
