// Package arch describes processor architectures as data: the registers that the unwinder tracks, their DWARF numbers,
// and their layout in the kernel's register notes. It does not depend on processes, call frame information or ELF
// images. To support another architecture, add a table to this package.
package arch

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
)

// Errors of this package; callers branch on them with errors.Is.
var (
	// ErrUnsupported means that this package has no table for the machine.
	ErrUnsupported = errors.New("arch: unsupported machine")
	// ErrShortRegisters means that a register note is smaller than the architecture's layout.
	ErrShortRegisters = errors.New("arch: register set too short")
)

// MaxColumns limits the DWARF register numbers that Index can map. In the supported ABIs, all registers that an
// unwinder needs have smaller numbers.
const MaxColumns = 128

// none marks a word of a register note, or a DWARF column, whose register is not tracked.
const none = -1

// Go describes how Go programs on an architecture differ from its psABI.
type Go struct {
	// Followed is set if the unwinder can follow the stack switches in the assembly code of Go's run time.
	Followed bool
	// Goroutine is the number of the register with the current goroutine in compiled code since Go 1.17, if Followed
	// is set.
	Goroutine int
	// ThreadPointer is the offset in NT_PRSTATUS of the thread pointer, in bytes, if Followed is set. The thread-local
	// variable runtime.tlsg has the address of the current goroutine.
	ThreadPointer int
	// SavedFP is the distance in bytes below SP at which a function with a frame saves its caller's frame pointer. It
	// is 0 if the function saves it elsewhere or not at all (cmd/internal/obj).
	SavedFP uint64
	// Injected is the size in bytes of the frame that a signal handler creates for a call of a function of Go's run
	// time. It is the smallest possible aligned frame (runtime/signal_*.go, preparePanic and pushCall).
	Injected uint64
}

// InstructionSet is a set of instructions that an unwinder can follow, or in which it only recognises calls.
type InstructionSet uint8

// The instruction sets.
const (
	Unfollowed InstructionSet = iota
	X86                       // package disasm decodes the instructions
	A64                       // package disasm decodes the instructions
	RV64                      // the unwinder only recognises calls
	ZArch                     // the unwinder only recognises calls
)

// Arch is one architecture. A "register number" is an index into Registers. It equals the DWARF column (the register
// number of the psABI), unless the psABI's numbers are sparse. Index maps DWARF columns to register numbers.
type Arch struct {
	// Name is the name of the architecture in Linux and Debian, for messages.
	Name string
	// Machine is the ELF e_machine.
	Machine elf.Machine
	// Order is the byte order of memory and of the register notes.
	Order binary.ByteOrder
	// AddrSize is the size of an address in bytes.
	AddrSize int

	// PC, SP and FP are register numbers. FP is the frame pointer register in code with frame pointers.
	PC, SP, FP int
	// ReturnColumn is the DWARF column of the return address, unless a CIE defines another one.
	ReturnColumn int
	// NumRegisters is one more than the highest register number in use.
	NumRegisters int
	// Preserved are the numbers of the registers that calls preserve, without the stack pointer. It is empty for
	// architectures where this program does not need them.
	Preserved []int

	// CFAToSP is added to the CFA to get the caller's SP if no rule gives the caller's SP.
	CFAToSP int64
	// RedZone is the number of bytes below SP that a leaf function may use.
	RedZone int
	// CodeMask has the bits that do not belong to a code address in user space: on aarch64, the bits of the pointer
	// authentication code. The kernel reports the mask of one process as NT_ARM_PAC_MASK.
	CodeMask uint64

	// Chain describes how frames without call frame information are chained.
	Chain Chain
	// Trampolines are the pieces of code to which signal handlers return.
	Trampolines []Trampoline

	// SPWrites are the instructions that change SP. CodeAlign is the alignment of instructions in bytes.
	SPWrites  []Pattern
	CodeAlign int
	// Restored reports whether SP has the caller's value again after the given instructions from a function's
	// beginning. The instructions must include the instruction that restored SP. Instructions after that one must not
	// jump. nil means that this is unknown for the architecture.
	Restored func(code []byte) bool

	// CallStubs are stubs for calls to functions of other files. Linkers put them among a file's functions, without
	// call frame information. The stubs do not change the stack pointer or the link register. The list is empty if the
	// architecture's linkers put stubs into a separate section.
	CallStubs [][]Pattern

	// Decoded is set if codeflow.Function supports the instructions. A frame pointer can then be recovered from them.
	Decoded bool
	// Instructions is the instruction set for package codeflow, which finds the caller of a function without call
	// frame information.
	Instructions InstructionSet

	// Go describes the code of Go's compiler and run time.
	Go Go

	// RegisterNames are the psABI's names by register number.
	RegisterNames []string

	// columns maps DWARF columns to register numbers, or to none.
	columns [MaxColumns]int8
	// prstatus has the register number of each word of the general registers in NT_PRSTATUS.
	prstatus []int8
	// fpregs has the register number of each word of NT_FPREGSET, if code may keep general registers in floating point
	// registers (s390x).
	fpregs []int8
	// syscallArgs are the register numbers of a system call's arguments, in order. It is empty if these registers may
	// have changed during the call, or if this is unknown.
	syscallArgs []int8
}

// Index returns the register number of a DWARF column, or -1 if the register is not tracked.
func (a *Arch) Index(column uint64) int {
	if column >= MaxColumns {
		return none
	}
	return int(a.columns[column])
}

// StripCode removes the pointer authentication code from a code address.
func (a *Arch) StripCode(addr uint64) uint64 {
	return addr &^ a.CodeMask
}

// WithCodeMask returns a copy of the architecture with another CodeMask, for example the mask of one process.
func (a *Arch) WithCodeMask(mask uint64) *Arch {
	if mask == a.CodeMask {
		return a
	}
	b := *a
	b.CodeMask = mask
	return &b
}

// The smallest and the largest number of address bits of processes on kernels that support signed return addresses.
const minAddressBits, maxAddressBits = 36, 52

// ForAddresses returns a copy of the architecture with the CodeMask of processes whose highest mapping ends at top. The
// authentication code of a return address begins above the highest address bit. Kernels differ in the number of address
// bits (Documentation/arch/arm64/pointer-authentication.rst of the kernel).
func (a *Arch) ForAddresses(top uint64) *Arch {
	n := bits.Len64(top - 1)
	if a.CodeMask == 0 || n < minAddressBits || n > maxAddressBits {
		return a
	}
	return a.WithCodeMask((a.CodeMask | (1<<bits.TrailingZeros64(a.CodeMask) - 1)) &^ (1<<n - 1))
}

// RegisterName returns the name of the register with a number, or "r" and the number if the register has no name.
func (a *Arch) RegisterName(reg int) string {
	if reg >= 0 && reg < len(a.RegisterNames) && a.RegisterNames[reg] != "" {
		return a.RegisterNames[reg]
	}
	return fmt.Sprintf("r%d", reg)
}

// DecodePRStatus decodes the general registers of NT_PRSTATUS, in the form of PTRACE_GETREGSET (struct
// user_regs_struct) or of core files (pr_reg). The error is ErrShortRegisters.
func (a *Arch) DecodePRStatus(raw []byte) (Registers, error) {
	var regs Registers
	err := a.decode(&regs, a.prstatus, raw, "NT_PRSTATUS")
	return regs, err
}

// DecodeFPRegSet adds to regs those registers of NT_FPREGSET that unwinding may need. Only s390x has such registers;
// for other architectures nothing is read and the error is nil.
func (a *Arch) DecodeFPRegSet(regs *Registers, raw []byte) error {
	return a.decode(regs, a.fpregs, raw, "NT_FPREGSET")
}

func (a *Arch) decode(regs *Registers, layout []int8, raw []byte, note string) error {
	if len(raw) < len(layout)*a.AddrSize {
		return fmt.Errorf("%w: %s of %s has %d bytes, %d needed",
			ErrShortRegisters, note, a.Name, len(raw), len(layout)*a.AddrSize)
	}
	for i, reg := range layout {
		if reg == none {
			continue
		}
		word := raw[i*a.AddrSize:]
		if a.AddrSize == 4 {
			regs.Set(int(reg), uint64(a.Order.Uint32(word)))
		} else {
			regs.Set(int(reg), a.Order.Uint64(word))
		}
	}
	return nil
}

// supported lists every architecture with a table.
func supported() []*Arch { return []*Arch{AMD64, ARM64, PPC64LE, S390X, RISCV64} }

// ByMachine returns the architecture of an ELF machine and byte order, or ErrUnsupported.
func ByMachine(m elf.Machine, order binary.ByteOrder) (*Arch, error) {
	for _, a := range supported() {
		if a.Machine == m && a.Order.String() == order.String() {
			return a, nil
		}
	}
	return nil, fmt.Errorf("%w: %s, %s", ErrUnsupported, m, order)
}

// Host returns the architecture for which this program was built; nil if this package has no table for it.
func Host() *Arch {
	switch runtime.GOARCH {
	case "amd64":
		return AMD64
	case "arm64":
		return ARM64
	case "ppc64le":
		return PPC64LE
	case "s390x":
		return S390X
	case "riscv64":
		return RISCV64
	}
	return nil
}

// columnRange maps count DWARF columns, beginning with column first, to register numbers, beginning with the number
// reg.
type columnRange struct{ first, count, reg int }

// mapColumns builds the column table of an architecture from ranges.
func mapColumns(ranges ...columnRange) [MaxColumns]int8 {
	var columns [MaxColumns]int8
	for i := range columns {
		columns[i] = none
	}
	for _, r := range ranges {
		for i := range columns[r.first:][:r.count] {
			columns[r.first:][i] = int8(r.reg + i)
		}
	}
	return columns
}

// run returns a layout of count consecutive register numbers, beginning with first.
func run(first, count int) []int8 {
	layout := make([]int8, count)
	for i := range layout {
		layout[i] = int8(first + i)
	}
	return layout
}

// numbered returns count names: the prefix followed by 0, 1, and so on.
func numbered(prefix string, count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return names
}
