package unwind

import (
	"bytes"
	"encoding/binary"
)

// prologue describes the registers that a Go function saves. They are derived from its code, because Go's table does
// not contain them.
type prologue struct {
	// saves are the saved registers; nil if the function saves none, or if its code was not understood.
	saves []save
	// record is the address in the code from which on the frame pointer points at CFA-16, the place of the caller's
	// frame pointer; 0: never.
	record uint64
}

// save says where on the stack, and from which instruction on, a function saves a register.
type save struct {
	register int
	// from is the address in the code from which on the register is saved. below is the distance of its place on the
	// stack below the CFA, in bytes.
	from, below uint64
}

// amd64Encoded maps the numbers of x86-64 registers in instructions to their DWARF numbers.
var amd64Encoded = [16]int{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15}

// callsGo is the function by which C calls Go. It saves the registers that C functions preserve.
const callsGo = "crosscall2"

// maxPrologue limits the bytes of code that are searched for the prologue.
const maxPrologue = 128

// findPrologue finds the instruction by which x86-64 code saves the frame pointer. The instruction is a push or, before
// Go 1.21, a store at the top of the frame. It is accepted only if the stack pointer's distance in Go's table fits it.
func (g *goFrame) findPrologue() prologue {
	if !g.w.arch.Go.Followed || g.module.Code == nil {
		return prologue{}
	}
	code, err := g.module.Code.Code(g.f.Entry, min(g.f.End-g.f.Entry, maxPrologue))
	if err != nil {
		return prologue{}
	}
	if g.f.Name == callsGo || entered[g.f.Name] {
		return g.savesAll(code)
	}
	var (
		push  = []byte{0x55, 0x48, 0x89, 0xe5}                                // push %rbp; mov %rsp,%rbp
		store = [2][]byte{{0x48, 0x89, 0x6c, 0x24}, {0x48, 0x89, 0xac, 0x24}} // mov %rbp,…(%rsp)
		lea   = [2][]byte{{0x48, 0x8d, 0x6c, 0x24}, {0x48, 0x8d, 0xac, 0x24}} // lea …(%rsp),%rbp
	)
	for off := range code {
		p := code[off:]
		at := g.f.Entry + uint64(off)
		if bytes.HasPrefix(p, push) {
			if d, err := g.f.SPDelta(at); err == nil && d == 0 {
				return g.frameRecord(at+1, at+4)
			}
		}
		for i, size := range [2]int{1, 4} {
			n := 4 + size
			if len(p) < 2*n || !bytes.HasPrefix(p, store[i]) || !bytes.HasPrefix(p[n:], lea[i]) ||
				!bytes.Equal(p[4:n], p[n+4:2*n]) {
				continue
			}
			if d, err := g.f.SPDelta(at); err == nil && d > 0 && displacement(p[4:n]) == int64(d)-8 {
				return g.frameRecord(at+uint64(n), at+uint64(2*n))
			}
		}
	}
	return prologue{}
}

// frameRecord returns the prologue of a function that saves the frame pointer at its usual place, CFA-16.
func (g *goFrame) frameRecord(saved, record uint64) prologue {
	return prologue{saves: []save{{register: g.w.arch.FP, from: saved, below: 16}}, record: record}
}

// displacement reads a signed displacement of one or four bytes.
func displacement(p []byte) int64 {
	if len(p) == 1 {
		return int64(int8(p[0]))
	}
	return int64(int32(binary.LittleEndian.Uint32(p)))
}

// savesAll reads the stores at the beginning of crosscall2 or a signal handler, which save all registers that their
// caller (C or the kernel) needs. It stops at the first unknown instruction. It returns no registers if Go's table
// contradicts a store.
func (g *goFrame) savesAll(code []byte) (p prologue) {
	for off := 0; off < len(code); {
		n, register, disp := storeAt(code[off:])
		if n == 0 {
			break
		}
		at := g.f.Entry + uint64(off)
		off += n
		if register < 0 {
			continue
		}
		d, err := g.f.SPDelta(at)
		if err != nil || disp >= int64(d) || disp < 0 {
			return prologue{}
		}
		if !p.has(register) {
			p.saves = append(p.saves, save{register: register, from: at + uint64(n), below: uint64(int64(d) + 8 - disp)})
		}
	}
	return p
}

func (p *prologue) has(register int) bool {
	for _, s := range p.saves {
		if s.register == register {
			return true
		}
	}
	return false
}

// storeAt decodes an instruction at the beginning of crosscall2 or a signal handler. n is its length, 0 for unknown
// instructions. For a store on the stack it returns the register and the offset from the stack pointer. The register is
// -1 for an instruction that stores nothing. Such an instruction may change the stack pointer, but Go's table describes
// these changes.
func storeAt(p []byte) (n, register int, disp int64) {
	at := func(i int) byte {
		if i < len(p) {
			return p[i]
		}
		return 0
	}
	rex, op, modRM, sib := at(0), at(1), at(2), at(3)
	wide := rex&0xfb == 0x48
	switch {
	case rex == 0x9c, rex == 0xfc: // pushf, cld
		return 1, -1, 0
	case rex == 0x48 && op == 0x83 && modRM == 0xec: // sub
		return 4, -1, 0
	case rex == 0x48 && op == 0x81 && modRM == 0xec:
		return 7, -1, 0
	case wide && (op == 0x89 || op == 0x8d) && modRM&7 == 4 && sib == 0x24:
		register = amd64Encoded[modRM>>3&7|rex&4<<1]
		if op == 0x8d {
			register = -1 // lea computes an address and stores nothing
		}
		switch modRM >> 6 {
		case 0:
			return 4, register, 0
		case 1:
			return 5, register, displacement([]byte{at(4)})
		case 2:
			return 8, register, displacement([]byte{at(4), at(5), at(6), at(7)})
		}
	}
	return 0, -1, 0
}
