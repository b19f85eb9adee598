/*
 * moment.c: counts in a register, and writes each number to two places of its stack. At any moment the register has a
 * number, the first place the same or the one before, and the second what the first has, or the one before.
 * Its first line of output is where the places are.
 */
#include <stdio.h>

int
main(void)
{
	volatile unsigned long places[2] = {0, 0};

	printf("%lu\n", (unsigned long) places);
	fflush(stdout);
	__asm__ volatile (
		"xor %%rbx, %%rbx\n"
		"1: inc %%rbx\n"
		"mov %%rbx, (%0)\n"
		"mov %%rbx, 8(%0)\n"
		"jmp 1b\n"
		: : "r"(places) : "rbx", "memory");
	return 0;
}
