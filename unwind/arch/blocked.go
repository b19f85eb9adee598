package arch

// Blocked returns the registers of a thread that sleeps in the kernel, as far as /proc/PID/syscall shows them: the
// program counter and the stack pointer. During a system call they include the registers with the call's arguments,
// because the call preserves them. All other registers are unknown.
func (a *Arch) Blocked(pc, sp uint64, inSyscall bool, args [6]uint64) Registers {
	var regs Registers
	regs.Set(a.PC, pc)
	regs.Set(a.SP, sp)
	if inSyscall {
		for i, reg := range a.syscallArgs {
			regs.Set(int(reg), args[i])
		}
	}
	return regs
}
