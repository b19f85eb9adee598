/*
 * spot.h: how a target program says that it has reached the spot where its stack is to be compared: it writes a line and
 * blocks for ever in pause(2). The test reads the line and then waits until the kernel shows the process asleep.
 */
#ifndef SPOT_H
#define SPOT_H

#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
/* After a call: keeps it from becoming a jump. */
#define STAY() __asm__ volatile("" ::: "memory")

static NOINLINE __attribute__((unused)) void
spot(void)
{
	volatile int forever = 1;		/* the compiler shall not know that this does not return */
	ssize_t		ignored = write(STDOUT_FILENO, "here\n", 5);

	(void) ignored;
	while (forever)
		pause();
}

#endif
