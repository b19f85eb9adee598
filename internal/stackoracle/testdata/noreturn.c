/* A function ends with a call that never returns: the return address belongs to the next function. */
#include "spot.h"

static volatile int argument = 1;

NOINLINE __attribute__((noreturn)) void
never(void)
{
	for (;;)
		spot();
}

/* ends with the call; follows() comes right after it in the file and in the text */
NOINLINE __attribute__((noreturn)) void
ends_with_call(void)
{
	never();
}

NOINLINE int
follows(void)
{
	return argument + 1;
}

int
main(void)
{
	if (argument)
		ends_with_call();
	return follows();
}
