/* After main: in exit(). */
#include "spot.h"

#include <stdlib.h>

static NOINLINE void
late(void)
{
	spot();
	STAY();
}

int
main(void)
{
	return atexit(late);
}
