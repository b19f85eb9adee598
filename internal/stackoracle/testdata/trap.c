/*
 * A signal at the very first instruction of a function: a caller's address is looked up as the one before it, this
 * address as it is. The function before it has another frame.
 */
#define _GNU_SOURCE
#include "spot.h"

#include <signal.h>

void		trap(void);

__asm__("	.text\n"
		"	.type before, @function\n"
		"before:\n"
		"	.cfi_startproc\n"
		"	sub $72, %rsp\n"
		"	.cfi_adjust_cfa_offset 72\n"
		"	nop\n"
		"	.cfi_endproc\n"
		"	.size before, .-before\n"
		"	.globl trap\n"
		"	.type trap, @function\n"
		"trap:\n"
		"	.cfi_startproc\n"
		"	ud2\n"
		"	ret\n"
		"	.cfi_endproc\n"
		"	.size trap, .-trap\n");

static NOINLINE void
handler(int sig)
{
	(void) sig;
	spot();
	STAY();
}

static NOINLINE void
caller(void)
{
	trap();
	STAY();
}

int
main(void)
{
	signal(SIGILL, handler);
	caller();
	STAY();
	return 0;
}
