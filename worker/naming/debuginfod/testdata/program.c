/* A program with a static function, to have its debug information served. */
#include <unistd.h>

__attribute__((noinline)) static void
inner(void)
{
	if (write(1, "r", 1) == 1)
		pause();
}

int
main(void)
{
	inner();
	return 0;
}
