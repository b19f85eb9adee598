#include "textflag.h"

// func passes(n uint64)
// It passes each instruction of its loop n times.
TEXT ·passes(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX

again:
	PUSHQ CX
	POPQ  CX
	DECQ  CX
	JNE   again
	RET

// func addressOfPasses() unsafe.Pointer
TEXT ·addressOfPasses(SB), NOSPLIT, $0-8
	LEAQ ·passes(SB), AX
	MOVQ AX, ret+0(FP)
	RET
