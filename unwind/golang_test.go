package unwind_test

import (
	"encoding/binary"
	"os"
	"testing"

	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/golang"
)

// goModules is the program that runs this test, at its own addresses.
type goModules struct{ module unwind.Module }

func (m goModules) Find(addr uint64) (unwind.Module, bool) {
	img, ok := m.module.Code.(*elfimage.Image)
	return m.module, ok && img.Executable(addr)
}

// openSelf opens the program that runs this test; false where it is not of x86-64.
func openSelf(f testing.TB) (goModules, bool) {
	f.Helper()
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = file.Close() })
	img, err := elfimage.Open(file, "exe")
	if err != nil {
		f.Fatal(err)
	}
	table, err := golang.NewTable(img)
	if err != nil {
		f.Fatal(err)
	}
	return goModules{unwind.Module{Go: table, Code: img}}, img.Machine() == arch.AMD64.Machine
}

// FuzzGo walks any stack with any registers by a real table: the walk ends, and does not panic.
func FuzzGo(f *testing.F) {
	modules, ok := openSelf(f)
	if !ok {
		f.Skip("not x86-64")
	}
	table := modules.module.Go
	for i := 0; i < table.Functions(); i += max(1, table.Functions()/100) {
		if fn, err := table.Function(i); err == nil {
			f.Add(fn.Entry, uint64(stackBase), uint64(stackBase+16), uint16(i), []byte("0123456789abcdef"))
		}
	}
	f.Fuzz(func(t *testing.T, pc, sp, fp uint64, jump uint16, stack []byte) {
		mem := fakeMemory{base: stackBase}
		for ; len(stack) >= 8; stack = stack[8:] {
			mem.words = append(mem.words, binary.LittleEndian.Uint64(stack))
		}
		for i := range mem.words { // some of them return addresses
			if fn, err := table.Function((i*int(jump) + int(jump)) % table.Functions()); err == nil && i%2 == 1 {
				mem.words[i] = fn.Entry + uint64(jump)%(fn.End-fn.Entry+1)
			}
		}
		regs := registers(pc, sp, fp)
		regs.Set(14, fp)
		u := unwind.Unwinder{Arch: arch.AMD64}
		frames, stop := u.Unwind(nil, regs, mem, modules)
		if len(frames) == 0 || len(frames) > unwind.DefaultMaxFrames || stop.Reason.String() == "still running" {
			t.Errorf("%d frames, %s", len(frames), stop)
		}
	})
}
