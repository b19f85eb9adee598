// Command rspcore makes a core file of a riscv64 program that runs under qemu's user mode, whose own core dumps do not
// work for that architecture. It speaks GDB's remote protocol to `qemu-riscv64 -g PORT` (GDB manual, appendix E): lets
// the program run to the stop that is asked for, and writes its registers, its auxiliary vector, its writable memory,
// its stack and the pages that the stack points to.
//
//	rspcore -connect 127.0.0.1:1234 -exe PROGRAM -stop 2 -out FILE
package main

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path"
	"slices"
)

const (
	page     = 4096
	maxStack = 1 << 20
	maxPages = 256
	regSP    = 2
	regPC    = 32
)

// trampoline is what a signal handler returns to: li a7, 139; ecall.
var trampoline = []byte{0x93, 0x08, 0xb0, 0x08, 0x73, 0, 0, 0}

func main() {
	connect := flag.String("connect", "127.0.0.1:1234", "qemu's gdb stub")
	exe := flag.String("exe", "", "the program")
	stop := flag.Int("stop", 1, "write the core at this stop; signals of earlier ones are delivered")
	out := flag.String("out", "core", "the core file")
	flag.Parse()
	if err := run(*connect, *exe, *out, *stop); err != nil {
		fmt.Fprintln(os.Stderr, "rspcore:", err)
		os.Exit(1)
	}
}

func run(connect, exe, out string, stop int) error {
	r, err := dial(connect)
	if err != nil {
		return err
	}
	defer r.close()
	signal, err := r.runTo(stop)
	if err != nil {
		return err
	}
	regs, err := r.registers()
	if err != nil {
		return err
	}
	auxv, err := r.auxv()
	if err != nil {
		return err
	}
	ranges, err := memory(r, exe, regs[regSP])
	if err != nil {
		return err
	}
	c := core{signal: signal, regs: regs, auxv: auxv, name: path.Base(exe), ranges: ranges}
	return os.WriteFile(out, c.bytes(), 0o600)
}

// memRange is a piece of the program's memory.
type memRange struct {
	addr  uint64
	data  []byte
	size  uint64 // in memory; data may be empty
	flags elf.ProgFlag
}

// memory reads what a core holds. Segments that are not writable are listed without content, as the kernel does it.
func memory(r *remote, exe string, sp uint64) ([]memRange, error) {
	f, err := elf.Open(exe)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	list := make([]memRange, 0, len(f.Progs)+1)
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || f.Type != elf.ET_EXEC {
			continue
		}
		start, end := p.Vaddr&^(page-1), (p.Vaddr+p.Memsz+page-1)&^(page-1)
		m := memRange{addr: start, size: end - start, flags: p.Flags}
		if p.Flags&elf.PF_W != 0 {
			m.data = r.pages(start, end)
		}
		list = append(list, m)
	}
	stack := r.pages(sp&^(page-1), sp&^(page-1)+maxStack)
	for off := page; off < len(stack); off += page {
		if bytes.HasPrefix(stack[off:], trampoline) { // qemu has it right behind the stack
			stack = stack[:off]
		}
	}
	list = append(list, memRange{
		addr: sp &^ (page - 1), data: stack, size: uint64(len(stack)), flags: elf.PF_R | elf.PF_W,
	})
	list = append(list, pointed(r, list, stack)...)
	slices.SortFunc(list, func(a, b memRange) int { return cmp.Compare(a.addr, b.addr) })
	return list, nil
}

// pointed reads the pages outside of list that words of the stack point to: the signal trampoline is among them.
func pointed(r *remote, list []memRange, stack []byte) []memRange {
	var more []memRange
	tried := make(map[uint64]bool)
	for ; len(stack) >= 8 && len(tried) < maxPages; stack = stack[8:] {
		at := binary.LittleEndian.Uint64(stack) &^ (page - 1)
		inside := slices.ContainsFunc(list, func(m memRange) bool { return at >= m.addr && at-m.addr < m.size })
		if at == 0 || tried[at] || inside {
			continue
		}
		tried[at] = true
		if data := r.pages(at, at+page); len(data) == page {
			more = append(more, memRange{addr: at, data: data, size: page, flags: elf.PF_R | elf.PF_X})
		}
	}
	return more
}

// core is what is written.
type core struct {
	signal int
	regs   []uint64 // x0 to x31, pc
	auxv   []byte
	name   string
	ranges []memRange
}

// bytes makes the file: headers, notes, memory (gABI, chapter 5; <linux/elfcore.h>).
func (c *core) bytes() []byte {
	le := binary.LittleEndian
	prstatus := make([]byte, 112+32*8+8)
	le.PutUint16(prstatus[12:], uint16(c.signal))
	le.PutUint32(prstatus[32:], 1)
	le.PutUint64(prstatus[112:], c.regs[regPC])
	for i := 1; i < 32; i++ {
		le.PutUint64(prstatus[112+8*i:], c.regs[i])
	}
	psinfo := make([]byte, 136)
	psinfo[1] = 'R'
	le.PutUint32(psinfo[24:], 1)
	copy(psinfo[40:55], c.name)
	copy(psinfo[56:135], c.name)
	var notes bytes.Buffer
	for _, n := range []struct {
		typ  uint32
		desc []byte
	}{{1, prstatus}, {3, psinfo}, {6, c.auxv}} {
		_ = binary.Write(&notes, le, []uint32{5, uint32(len(n.desc)), n.typ})
		notes.WriteString("CORE\x00\x00\x00\x00")
		notes.Write(n.desc)
	}
	var head, data bytes.Buffer
	base := uint64(64 + 56*(len(c.ranges)+1))
	_ = binary.Write(&head, le, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_CORE),
		Machine: uint16(elf.EM_RISCV), Version: 1, Phoff: 64, Flags: 5, Ehsize: 64, Phentsize: 56,
		Phnum: uint16(len(c.ranges) + 1),
	})
	_ = binary.Write(&head, le, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: base, Filesz: uint64(notes.Len()), Align: 4})
	data.Write(notes.Bytes())
	for _, m := range c.ranges {
		_ = binary.Write(&head, le, elf.Prog64{
			Type: uint32(elf.PT_LOAD), Flags: uint32(m.flags), Off: base + uint64(data.Len()), Vaddr: m.addr,
			Filesz: uint64(len(m.data)), Memsz: m.size, Align: page,
		})
		data.Write(m.data)
	}
	return append(head.Bytes(), data.Bytes()...)
}
