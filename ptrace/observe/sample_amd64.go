package observe

// perfRegisters has the registers of enum perf_event_x86_regs, in ascending order, which is the order in a sample. The
// enum's segment registers are left out, because unwinding does not need them.
//
//nolint:gochecknoglobals // a table
var perfRegisters = []perfRegister{
	{0, 10}, {1, 5}, {2, 11}, {3, 12}, // ax bx cx dx
	{4, 13}, {5, 14}, {6, 4}, {7, 19}, // si di bp sp
	{8, 16},                            // ip
	{16, 9}, {17, 8}, {18, 7}, {19, 6}, // r8 r9 r10 r11
	{20, 3}, {21, 2}, {22, 1}, {23, 0}, // r12 r13 r14 r15
}
