/* Sleeps on the stack of a coroutine, which makecontext has prepared. */
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

static ucontext_t own, other;

static void
coroutine(void)
{
	if (write(1, "r", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

int
main(void)
{
	enum { SIZE = 65536 };

	getcontext(&other);
	other.uc_stack.ss_sp = malloc(SIZE);
	other.uc_stack.ss_size = SIZE;
	other.uc_link = &own;
	makecontext(&other, coroutine, 0);
	return swapcontext(&own, &other);
}
