/* Plain nested calls with locals, saved registers and an inlined function; compiled in many ways. */
#include "spot.h"

#include <string.h>

static volatile int argument = 3;

static NOINLINE int
inner(int n)
{
	char		text[100];

	memset(text, n, sizeof(text));
	__asm__ volatile("" :: "r"(text) : "memory");
	spot();
	STAY();
	return text[n];
}

static inline __attribute__((always_inline)) int
inlined(int n)
{
	int			r = inner(n + 1);

	STAY();
	return r * 3;
}

static NOINLINE int
middle(int n)
{
	int			a = argument, b = argument + n, c = argument * n, d = argument - n, e = argument ^ n;
	int			r = inlined(n);

	STAY();
	return r + a * b + c * d + e * a + b * c + d * e;
}

NOINLINE int
outer(int n)
{
	int			r = middle(n + argument);

	STAY();
	return r + argument;
}

int
main(void)
{
	int			r = outer(argument);

	STAY();
	return r;
}
