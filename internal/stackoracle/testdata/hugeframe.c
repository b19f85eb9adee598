/* A frame of 2 MiB: more than a capture copies of a stack. */
#include "spot.h"

static NOINLINE void
huge(void)
{
	char		buffer[2 * 1024 * 1024];

	__asm__ volatile("" :: "r"(buffer) : "memory");
	spot();
	STAY();
	__asm__ volatile("" :: "r"(buffer) : "memory");
}

int
main(void)
{
	huge();
	STAY();
	return 0;
}
