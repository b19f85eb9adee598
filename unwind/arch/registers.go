package arch

// MaxRegisters bounds the register numbers of every architecture.
const MaxRegisters = 64

// Registers is the set of register values known in one frame. It is a value: a copy is independent, and the zero value
// has no known register. A register may be unknown because its value was not saved, or because the snapshot lacks the
// memory with the value.
type Registers struct {
	values [MaxRegisters]uint64
	known  uint64
}

// Get returns a register's value and whether it is known.
func (r *Registers) Get(reg int) (uint64, bool) {
	if uint(reg) >= MaxRegisters || r.known&(1<<uint(reg)) == 0 {
		return 0, false
	}
	return r.values[reg], true
}

// Set makes a register known. Numbers outside [0, MaxRegisters) are ignored.
func (r *Registers) Set(reg int, value uint64) {
	if uint(reg) < MaxRegisters {
		r.values[reg] = value
		r.known |= 1 << uint(reg)
	}
}

// Clear makes a register unknown.
func (r *Registers) Clear(reg int) {
	if uint(reg) < MaxRegisters {
		r.values[reg] = 0
		r.known &^= 1 << uint(reg)
	}
}

// Known returns the set of known registers, bit n for register n.
func (r *Registers) Known() uint64 { return r.known }
