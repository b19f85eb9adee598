/*
 * probed.c: waits for a byte, and then for ever, below functions whose return may be probed: once() calls probed() in
 * one place, twice() in two, and pointed() where it cannot be seen that it does.
 */
#include <unistd.h>

static volatile int one = 1;

int __attribute__((noinline))
innermost(int n)
{
	pause();
	return n + one;
}

int __attribute__((noinline))
probed(int n)
{
	return innermost(n + one) + one;
}

int __attribute__((noinline))
other(int n)
{
	return n + one;
}

int __attribute__((noinline))
once(int n)
{
	return probed(n + one) + other(one);
}

int __attribute__((noinline))
twice(int n)
{
	if (n > one)
		return probed(n - one) + one;
	return probed(n + one) - one;
}

int __attribute__((noinline))
pointed(int n)
{
	int			(*volatile hidden) (int) = probed;

	return hidden(n + one) + one;
}

int __attribute__((noinline))
again(int n, int (*way) (int))
{
	if (n == 0)
		return way(one) + one;
	return again(n - one, way) + one;
}

int __attribute__((noinline))
by_once(int n)
{
	return once(n + one) + one;
}

int __attribute__((noinline))
by_twice(int n)
{
	return twice(n + one) + one;
}

int __attribute__((noinline))
by_pointed(int n)
{
	return pointed(n + one) + one;
}

/* framed has a frame pointer where others have none. */
int __attribute__((noinline, optimize("no-omit-frame-pointer")))
framed(int n)
{
	return pointed(n + one) + one;
}

int
main(int argc, char **argv)
{
	char		c;

	(void) argc;
	if (read(0, &c, 1) != 1)
		return 1;
	switch (argv[1][0])
	{
		case 'o':
			return by_once(one) + one;
		case 't':
			return by_twice(one) + one;
		case 'f':
			return framed(one) + one;
		case 'p':
			return by_pointed(one) + one;
		default:
			return again(2, by_once) + one;
	}
}
