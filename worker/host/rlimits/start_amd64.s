#include "go_asm.h"
#include "textflag.h"

// The numbers of system calls.
#define SYS_write 1
#define SYS_clone 56
#define SYS_exit 60
#define SYS_wait4 61
#define SYS_fcntl 72
#define SYS_exit_group 231
#define SYS_openat 257
#define SYS_prlimit64 302

#define EBADF 9
#define EAGAIN 11
#define F_GETFD 1
#define AT_FDCWD -100
#define O_RDONLY 0
#define CLONE 0x4111 // CLONE_VM | CLONE_VFORK | SIGCHLD

// pg_stat_backtrace_start is the program's entry point. It runs before the Go runtime, without a Go stack. It opens
// /dev/null for standard descriptors that are closed, for reading only so that output fails, verifies the limits, and jumps to the runtime's entry point, with
// the stack pointer of the kernel. The stack has:
//
//	 0(SP)  a limit: its soft and its hard value
//	16(SP)  the limit of threads, lowered by Threads
TEXT pg_stat_backtrace_start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	SUBQ	$32, SP
	MOVQ	$0, R13

descriptor:
	MOVQ	R13, DI
	MOVQ	$F_GETFD, SI
	MOVL	$SYS_fcntl, AX
	SYSCALL
	CMPQ	AX, $-EBADF
	JNE	opened
	MOVQ	$AT_FDCWD, DI
	MOVQ	·devNull(SB), SI
	MOVQ	$O_RDONLY, DX
	MOVQ	$0, R10
	MOVL	$SYS_openat, AX
	SYSCALL
	MOVQ	·closed(SB), SI
	MOVQ	·closed+8(SB), DX
	TESTQ	AX, AX
	JLT	fail

opened:
	INCQ	R13
	CMPQ	R13, $const_standardDescriptors
	JNE	descriptor

	LEAQ	·floors(SB), R12
	MOVQ	$const_floorCount, R13

next:
	MOVQ	$0, DI
	MOVQ	floor_resource(R12), SI
	MOVQ	$0, DX
	MOVQ	SP, R10
	MOVL	$SYS_prlimit64, AX
	SYSCALL
	TESTQ	AX, AX
	JNE	enough
	MOVQ	0(SP), AX
	CMPQ	AX, floor_least(R12)
	JAE	enough
	MOVQ	floor_message(R12), SI
	MOVQ	floor_message+8(R12), DX
	JMP	fail

enough:
	ADDQ	$floor__size, R12
	DECQ	R13
	JNE	next

	// With a limit that is lower by Threads, one process more must be possible.
	MOVQ	$0, DI
	MOVQ	$const_rlimitNproc, SI
	MOVQ	$0, DX
	MOVQ	SP, R10
	MOVL	$SYS_prlimit64, AX
	SYSCALL
	TESTQ	AX, AX
	JNE	start
	MOVQ	8(SP), AX
	MOVQ	AX, 24(SP)
	MOVQ	0(SP), AX
	CMPQ	AX, $const_rlimitInfinity // all bits set
	JEQ	fork
	SUBQ	$const_Threads, AX
	JCC	lower
	MOVQ	$0, AX

lower:
	MOVQ	AX, 16(SP)
	LEAQ	16(SP), R12
	CALL	setThreads<>(SB)

fork:
	MOVQ	$CLONE, DI
	MOVQ	$0, SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVL	$SYS_clone, AX
	SYSCALL
	TESTQ	AX, AX
	JNE	parent
	MOVQ	$0, DI
	MOVL	$SYS_exit, AX
	SYSCALL

parent:
	MOVQ	AX, R13
	MOVQ	SP, R12
	CALL	setThreads<>(SB)
	CMPQ	R13, $-EAGAIN
	JNE	reap
	MOVQ	·threads(SB), SI
	MOVQ	·threads+8(SB), DX
	JMP	fail

reap:
	TESTQ	R13, R13
	JLT	start
	MOVQ	R13, DI
	MOVQ	$0, SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVL	$SYS_wait4, AX
	SYSCALL

start:
	ADDQ	$32, SP
	JMP	_rt0_amd64_linux(SB)

fail:
	MOVQ	$2, DI
	MOVL	$SYS_write, AX
	SYSCALL
	MOVQ	$1, DI
	MOVL	$SYS_exit_group, AX
	SYSCALL
	INT	$3

// setThreads sets the limit of threads to the values at R12.
TEXT setThreads<>(SB),NOSPLIT|NOFRAME,$0
	MOVQ	$0, DI
	MOVQ	$const_rlimitNproc, SI
	MOVQ	R12, DX
	MOVQ	$0, R10
	MOVL	$SYS_prlimit64, AX
	SYSCALL
	RET
