#include "textflag.h"

// pg_stat_backtrace_start is the program's entry point. On this architecture init verifies the limits.
TEXT pg_stat_backtrace_start(SB),NOSPLIT|NOFRAME,$0
	BR	_rt0_ppc64le_linux(SB)
