/*
 * The child of a vfork runs on its parent's stack. The child is what is to be looked at: it writes its process id, since
 * the test knows the parent's only. (The parent cannot be stopped until the child ends.)
 */
#define _GNU_SOURCE
#include "spot.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>

static NOINLINE void
child(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dprintf(STDOUT_FILENO, "%d\n", (int) getpid());
	spot();
	STAY();
}

static NOINLINE void
parent(void)
{
	pid_t		pid = vfork();

	if (pid == 0)
	{
		child();
		_exit(0);
	}
	STAY();
}

int
main(void)
{
	parent();
	STAY();
	return 0;
}
