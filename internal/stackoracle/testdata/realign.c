/* Frames that are realigned and of a size known at run time only: the CFA is an expression, or in a register. */
#include "spot.h"

#include <alloca.h>
#include <string.h>

static volatile int argument = 7;

static NOINLINE int
with_alloca(int n)
{
	char	   *p = alloca((size_t) n * 10);

	memset(p, n, (size_t) n * 10);
	__asm__ volatile("" :: "r"(p) : "memory");
	spot();
	STAY();
	return p[n];
}

static NOINLINE int
realigned(int n)
{
	char		line[128] __attribute__((aligned(64)));

	memset(line, n, sizeof(line));
	__asm__ volatile("" :: "r"(line) : "memory");
	n = with_alloca(n);
	STAY();
	return n + line[n & 63];
}

static NOINLINE int
both(int n, int a, int b, int c, int d, int e, int f, int g)
{
	char		line[64] __attribute__((aligned(128)));
	char	   *p = alloca((size_t) n * 16);

	memset(line, n, sizeof(line));
	memset(p, n, (size_t) n * 16);
	__asm__ volatile("" :: "r"(line), "r"(p) : "memory");
	n = realigned(n);
	STAY();
	return n + line[n & 63] + p[a] + b + c + d + e + f + g;
}

int
main(void)
{
	int			n = argument;

	n = both(n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7);
	STAY();
	return n;
}
