/*
 * throws.cc: exceptions, which leave functions that have not returned: through cleanups, handlers that throw again, a
 * handler within a handler, a filter that lets it pass, and a frame of unknown size.
 */
#include <alloca.h>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

static volatile int count;

struct Guard
{
	~Guard() { count = count + 1; }
};

__attribute__((noinline)) static void
leaf(int depth)
{
	if (depth % 2)
		throw std::runtime_error("odd");
	throw depth;
}

__attribute__((noinline)) static void
cleans(int depth)
{
	Guard		guard;

	leaf(depth);
}

__attribute__((noinline)) static void
sized(int depth)
{
	char	   *space = static_cast<char *>(alloca(depth * 100));

	memset(space, depth, depth * 100);
	cleans(depth);
	count = count + space[depth];
}

__attribute__((noinline)) static void
again(int depth)
{
	try
	{
		sized(depth);
	}
	catch (const std::exception &e)
	{
		count = count + (e.what()[0] == 'o');
		throw;
	}
}

__attribute__((noinline)) static void
passes(int depth) noexcept(false)
{
	try
	{
		again(depth);
	}
	catch (const std::string &)
	{
		count = -1;
	}
}

int
main()
{
	for (int depth = 1; depth < 5; depth++)
	{
		try
		{
			passes(depth);
		}
		catch (int n)
		{
			try
			{
				again(n + 1);
			}
			catch (const std::runtime_error &)
			{
				count = count + 1;
			}
		}
		catch (...)
		{
			count = count + 1;
		}
	}
	printf("%d\n", count);
	return 0;
}
