package probe

import "reflect"

// Words of struct pt_regs: the stack pointer, and Go's first registers of arguments (ax, bx, cx).
const registerSP = 19

var registerArguments = [3]int{10, 5, 11}

// breakpoint is int3.
const breakpoint = 0xcc

// instruction returns what a breakpoint overwrites of the first instruction of probedCall.
func instruction() byte { return *(*byte)(reflect.ValueOf(probedCall).UnsafePointer()) }
