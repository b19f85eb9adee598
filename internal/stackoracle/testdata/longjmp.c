/* Deep, then back by longjmp, then deep another way: the old frames below are not to be found. */
#include "spot.h"

#include <setjmp.h>

static jmp_buf back;
static volatile int argument = 40;

static NOINLINE int
down(int n)
{
	int			r;

	if (n == 0)
	{
		if (argument)
			longjmp(back, 1);
		return 0;
	}
	r = down(n - 1);
	STAY();
	return r + argument;
}

static NOINLINE void
other(void)
{
	spot();
	STAY();
}

static NOINLINE int
jumped(void)
{
	if (setjmp(back) == 0)
		return down(argument);
	other();
	STAY();
	return 0;
}

int
main(void)
{
	int			r = jumped();

	STAY();
	return r;
}
