/* Never asleep: prologues, epilogues, the vDSO, the procedure linkage table. Stopped at arbitrary moments. */
#define _GNU_SOURCE
#include "spot.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile unsigned sink;

static int
order(const void *a, const void *b)
{
	return *(const unsigned char *) a - *(const unsigned char *) b;
}

static NOINLINE void
clock_leaf(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	sink += (unsigned) now.tv_nsec;
}

static NOINLINE void
sort_leaf(void)
{
	unsigned char bytes[64];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char) (i * 37 + sink);
	qsort(bytes, sizeof(bytes), 1, order);
	sink += bytes[0];
}

static NOINLINE unsigned
tiny(unsigned n)
{
	if (n == 0)
		return sink;
	n = tiny(n - 1) + n;
	STAY();
	return n;
}

int
main(void)
{
	ssize_t		ignored = write(STDOUT_FILENO, "here\n", 5);

	(void) ignored;
	for (;;)
	{
		clock_leaf();
		sort_leaf();
		sink += tiny(12);
	}
}
