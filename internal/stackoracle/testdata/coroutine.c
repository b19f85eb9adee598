/* On a stack of its own, made by makecontext: it ends in the C library's start code of a context. */
#include "spot.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

static NOINLINE void
below(void)
{
	spot();
	STAY();
}

static NOINLINE void
body(void)
{
	below();
	STAY();
}

int
main(void)
{
	static ucontext_t own;
	static ucontext_t other;
	size_t		size = 64 * 1024;

	getcontext(&other);
	other.uc_stack.ss_size = size;
	other.uc_stack.ss_sp = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (other.uc_stack.ss_sp == MAP_FAILED)
		abort();
	other.uc_link = &own;
	makecontext(&other, body, 0);
	swapcontext(&own, &other);
	return 0;
}
