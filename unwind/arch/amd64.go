package arch

import (
	"debug/elf"
	"encoding/binary"
)

// Register numbers of x86-64: the DWARF columns of the psABI's figure 3.36.
const (
	amd64RAX = iota
	amd64RDX
	amd64RCX
	amd64RBX
	amd64RSI
	amd64RDI
	amd64RBP
	amd64RSP
	amd64R8
	amd64R9
	amd64R10
	amd64R11
	amd64R12
	amd64R13
	amd64R14
	amd64R15
	amd64RIP
	amd64Count
)

// AMD64 is x86-64, System V ABI.
var AMD64 = &Arch{
	Name:         "x86_64",
	Machine:      elf.EM_X86_64,
	Order:        binary.LittleEndian,
	AddrSize:     8,
	PC:           amd64RIP,
	SP:           amd64RSP,
	FP:           amd64RBP,
	ReturnColumn: amd64RIP,
	Go:           Go{Followed: true, Goroutine: 14, ThreadPointer: 21 * 8, Injected: 8},
	NumRegisters: amd64Count,
	Preserved:    []int{3, 6, 12, 13, 14, 15},
	RedZone:      128,
	Chain:        Chain{Base: amd64RBP, Saved: 0, Return: 8, SP: 16},
	Trampolines: []Trampoline{{
		// mov $15, %rax; syscall. The frame begins with a ucontext: flags, link, stack, and then struct sigcontext.
		Code:      []byte{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05},
		Registers: 40,
		Layout: []int8{
			amd64R8, amd64R9, amd64R10, amd64R11, amd64R12, amd64R13, amd64R14, amd64R15, amd64RDI, amd64RSI,
			amd64RBP, amd64RBX, amd64RDX, amd64RAX, amd64RCX, amd64RSP, amd64RIP,
		},
	}},
	CodeAlign:    1,
	Decoded:      true,
	Instructions: X86,
	SPWrites: []Pattern{
		{[]byte{0xf0}, []byte{0x50}},                               // push, pop
		{[]byte{0xfd}, []byte{0x68}},                               // push immediate
		{[]byte{0xfe}, []byte{0xc8}}, {[]byte{0xff}, []byte{0xe8}}, // enter, leave, call
		{[]byte{0xff, 0x38}, []byte{0xff, 0x30}}, // push memory
		{[]byte{0xff, 0x38}, []byte{0xff, 0x10}}, // call through memory
		{[]byte{0xfd, 0xc7}, []byte{0x81, 0xc4}}, // add, sub …
		{[]byte{0xff, 0x38}, []byte{0x8d, 0x20}}, // lea
		{[]byte{0xff, 0xc7}, []byte{0x89, 0xc4}}, // mov
		{[]byte{0xff, 0x38}, []byte{0x8b, 0x20}},
		// With the prefix REX, which distinguishes RSP and R12: add, sub, and (of a register, of memory), xchg.
		{[]byte{0xf9, 0xff, 0xc7}, []byte{0x48, 0x01, 0xc4}}, {[]byte{0xfc, 0xff, 0x38}, []byte{0x48, 0x03, 0x20}},
		{[]byte{0xf9, 0xff, 0xc7}, []byte{0x48, 0x29, 0xc4}}, {[]byte{0xfc, 0xff, 0x38}, []byte{0x48, 0x2b, 0x20}},
		{[]byte{0xf9, 0xff, 0xc7}, []byte{0x48, 0x21, 0xc4}}, {[]byte{0xfc, 0xff, 0x38}, []byte{0x48, 0x23, 0x20}},
		{[]byte{0xf9, 0xff, 0xc7}, []byte{0x48, 0x87, 0xc4}}, {[]byte{0xfc, 0xff, 0x38}, []byte{0x48, 0x87, 0x20}},
		{[]byte{0xf9, 0xff}, []byte{0x48, 0x94}},
		{[]byte{0xff, 0x38}, []byte{0x8f, 0x00}}, // pop memory
		{[]byte{0xfe}, []byte{0x9c}},             // pushf, popf
		{[]byte{0xff, 0xf6}, []byte{0x0f, 0xa0}}, // push, pop of fs and gs
	},
	RegisterNames: []string{
		"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
		"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
	},
	columns: mapColumns(columnRange{0, amd64Count, 0}),
	// struct user_regs_struct of <sys/user.h>: 27 words.
	prstatus: []int8{
		amd64R15, amd64R14, amd64R13, amd64R12, amd64RBP, amd64RBX, amd64R11, amd64R10,
		amd64R9, amd64R8, amd64RAX, amd64RCX, amd64RDX, amd64RSI, amd64RDI,
		none, // orig_rax
		amd64RIP,
		none, // cs
		none, // eflags
		amd64RSP,
		none, none, none, none, none, none, none, // ss, fs_base, gs_base, ds, es, fs, gs
	},
	// The arguments of syscall(2). The kernel does not change its copies of these registers during the call.
	syscallArgs: []int8{amd64RDI, amd64RSI, amd64RDX, amd64R10, amd64R8, amd64R9},
}
