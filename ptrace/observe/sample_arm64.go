package observe

// perfRegisters has the registers of enum perf_event_arm_regs, which are in the order of user_pt_regs.
//
//nolint:gochecknoglobals // a table
var perfRegisters = func() []perfRegister {
	registers := make([]perfRegister, 33)
	for i := range registers {
		registers[i] = perfRegister{i, i}
	}
	return registers
}()
