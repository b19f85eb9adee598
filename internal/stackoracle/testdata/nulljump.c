/* A call through a null pointer, looked at from the handler of the fault. */
#define _GNU_SOURCE
#include "spot.h"

#include <signal.h>

static void (*volatile function) (void);

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
	function();
	STAY();
}

int
main(void)
{
	signal(SIGSEGV, handler);
	caller();
	STAY();
	return 0;
}
