#include "go_asm.h"
#include "textflag.h"

// The numbers of system calls.
#define SYS_fcntl 25
#define SYS_openat 56
#define SYS_write 64
#define SYS_exit 93
#define SYS_exit_group 94
#define SYS_clone 220
#define SYS_wait4 260
#define SYS_prlimit64 261

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
//	 0(RSP)  a limit: its soft and its hard value
//	16(RSP)  the limit of threads, lowered by Threads
TEXT pg_stat_backtrace_start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	SUB	$32, RSP
	MOVD	$0, R20

descriptor:
	MOVD	R20, R0
	MOVD	$F_GETFD, R1
	MOVD	$SYS_fcntl, R8
	SVC
	CMN	$EBADF, R0
	BNE	opened
	MOVD	$AT_FDCWD, R0
	MOVD	·devNull(SB), R1
	MOVD	$O_RDONLY, R2
	MOVD	$0, R3
	MOVD	$SYS_openat, R8
	SVC
	MOVD	·closed(SB), R1
	MOVD	·closed+8(SB), R2
	TBNZ	$63, R0, fail

opened:
	ADD	$1, R20
	CMP	$const_standardDescriptors, R20
	BNE	descriptor

	MOVD	$·floors(SB), R19
	MOVD	$const_floorCount, R20

next:
	MOVD	$0, R0
	MOVD	floor_resource(R19), R1
	MOVD	$0, R2
	MOVD	RSP, R3
	MOVD	$SYS_prlimit64, R8
	SVC
	CBNZ	R0, enough
	MOVD	0(RSP), R4
	MOVD	floor_least(R19), R5
	CMP	R5, R4
	BHS	enough
	MOVD	floor_message(R19), R1
	MOVD	floor_message+8(R19), R2
	B	fail

enough:
	ADD	$floor__size, R19
	SUB	$1, R20
	CBNZ	R20, next

	// With a limit that is lower by Threads, one process more must be possible.
	MOVD	$0, R0
	MOVD	$const_rlimitNproc, R1
	MOVD	$0, R2
	MOVD	RSP, R3
	MOVD	$SYS_prlimit64, R8
	SVC
	CBNZ	R0, start
	MOVD	8(RSP), R4
	MOVD	R4, 24(RSP)
	MOVD	0(RSP), R4
	CMN	$1, R4 // no limit: all bits set
	BEQ	fork
	SUBS	$const_Threads, R4, R4
	BHS	lower
	MOVD	$0, R4

lower:
	MOVD	R4, 16(RSP)
	ADD	$16, RSP, R19
	BL	setThreads<>(SB)

fork:
	MOVD	$CLONE, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$SYS_clone, R8
	SVC
	CBNZ	R0, parent
	MOVD	$0, R0
	MOVD	$SYS_exit, R8
	SVC

parent:
	MOVD	R0, R20
	MOVD	RSP, R19
	BL	setThreads<>(SB)
	CMN	$EAGAIN, R20
	BNE	reap
	MOVD	·threads(SB), R1
	MOVD	·threads+8(SB), R2
	B	fail

reap:
	CMP	$0, R20
	BLT	start
	MOVD	R20, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$SYS_wait4, R8
	SVC

start:
	ADD	$32, RSP
	B	_rt0_arm64_linux(SB)

fail:
	MOVD	$2, R0
	MOVD	$SYS_write, R8
	SVC
	MOVD	$1, R0
	MOVD	$SYS_exit_group, R8
	SVC
	BRK

// setThreads sets the limit of threads to the values at R19.
TEXT setThreads<>(SB),NOSPLIT|NOFRAME,$0
	MOVD	$0, R0
	MOVD	$const_rlimitNproc, R1
	MOVD	R19, R2
	MOVD	$0, R3
	MOVD	$SYS_prlimit64, R8
	SVC
	RET
