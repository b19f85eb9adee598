package corefile_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"

	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/unwind/elfimage"
)

// FuzzOpen reads arbitrary cores. The result must be an error or a core with threads, without panic. All methods of
// such a core must return.
func FuzzOpen(f *testing.F) {
	f.Add(makeCore(binary.LittleEndian, elf.EM_X86_64, 27))
	f.Add(makeCore(binary.BigEndian, elf.EM_S390, 27))
	f.Add(makeCore(binary.LittleEndian, elf.EM_AARCH64, 34))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := corefile.Open(bytes.NewReader(data), "fuzz")
		if (c == nil) == (err == nil) {
			t.Fatalf("core %v, error %v", c, err)
		}
		if err != nil {
			return
		}
		if len(c.Threads) == 0 {
			t.Fatal("no threads, no error")
		}
		exe, err := elfimage.Open(bytes.NewReader(data), "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		mapped := c.Mapped()
		for i := range mapped {
			c.BuildID(&mapped[i])
			if _, _, err := c.Check(&mapped[i], exe); err == nil {
				c.Linked(exe, 0)
			}
		}
		mem := corefile.NewMemory(c, []corefile.Backing{{End: ^uint64(0), File: bytes.NewReader(data)}})
		for _, s := range c.Segments {
			for _, addr := range []uint64{s.Vaddr - 1, s.Vaddr, s.Vaddr + s.Filesz - 1, s.Vaddr + s.Memsz - 3} {
				mem.Word(addr)
				mem.Read(addr, 2)
			}
		}
	})
}
