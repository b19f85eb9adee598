/*
 * signals.c: a signal after the other, and nothing else.
 */
#include <signal.h>
#include <unistd.h>

static void
nothing(int signal)
{
	(void) signal;
}

int
main(void)
{
	signal(SIGUSR1, nothing);
	for (;;)
		kill(getpid(), SIGUSR1);
}
