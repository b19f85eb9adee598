/* Before main: below the C library's start code. */
#include "spot.h"

static NOINLINE void
early(void)
{
	spot();
	STAY();
}

static void __attribute__((constructor))
construct(void)
{
	early();
	STAY();
}

int
main(void)
{
	return 0;
}
