/*
 * A process that sits still in a call that is inlined twice: outer -> (middle
 * -> inner), which the compiler has put into outer. It writes a byte to
 * standard output when it is there, or nearly.
 */
#include <unistd.h>

static inline __attribute__((always_inline)) int
inner(int n)
{
	while (n > 0)
		pause();	/* line 12 */
	return n;
}

static inline __attribute__((always_inline)) int
middle(int n)
{
	return inner(n + 1) * 3;	/* line 19 */
}

static __attribute__((noinline)) int
outer(int n)
{
	if (write(1, "r", 1) != 1)
		return 1;
	return middle(n) + 1;	/* line 27 */
}

int
main(int argc, char **argv)
{
	(void) argv;
	return outer(argc) + 1;	/* line 34 */
}
