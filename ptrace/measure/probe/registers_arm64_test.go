package probe

import "reflect"

// Words of struct user_pt_regs: the stack pointer, and Go's first registers of arguments (R0, R1, R2).
const registerSP = 31

var registerArguments = [3]int{0, 1, 2}

// breakpoint is brk #5.
const breakpoint = 0xd42000a0

// instruction returns the first instruction of probedCall.
func instruction() uint32 { return *(*uint32)(reflect.ValueOf(probedCall).UnsafePointer()) }
