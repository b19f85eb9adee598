/*
 * signals.c: after a word, a signal after the other, and nothing else.
 */
#include <signal.h>
#include <stdio.h>
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
	puts("ready");
	fflush(stdout);
	for (;;)
		kill(getpid(), SIGUSR1);
}
