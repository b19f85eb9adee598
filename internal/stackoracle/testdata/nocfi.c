/* C, assembly without call frame information, C. -DCALLEE says through which function of nocfi.S. */
#include "spot.h"

void		CALLEE(void (*callback) (void));

static NOINLINE void
callback(void)
{
	spot();
	STAY();
}

static NOINLINE void
caller(void)
{
	CALLEE(callback);
	STAY();
}

int
main(void)
{
	caller();
	STAY();
	return 0;
}
