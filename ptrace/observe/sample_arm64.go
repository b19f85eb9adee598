package observe

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
