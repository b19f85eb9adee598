package ptrace

// prStatusSize is the size of struct user_pt_regs (asm/ptrace.h): x0 to x30, sp, pc, pstate.
const prStatusSize = 34 * 8

// perfRegisters: enum perf_event_arm_regs has the order of user_pt_regs.
//
//nolint:gochecknoglobals // a table
var perfRegisters = func() []perfRegister {
	registers := make([]perfRegister, 33)
	for i := range registers {
		registers[i] = perfRegister{i, i}
	}
	return registers
}()
