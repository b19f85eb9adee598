/* 10,000 frames of the same function. */
#include "spot.h"

static volatile int argument = 10000;

static NOINLINE int
recurse(int n)
{
	int			r;

	if (n <= 1)
	{
		spot();
		STAY();
		return 1;
	}
	r = recurse(n - 1);
	STAY();
	return r + argument;
}

int
main(void)
{
	int			r = recurse(argument);

	STAY();
	return r;
}
