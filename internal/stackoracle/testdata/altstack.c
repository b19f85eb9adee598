/* Signal handlers nested three deep, the first of them on an alternate stack, with saved state between them. */
#define _GNU_SOURCE
#include "spot.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

static NOINLINE void
third(int sig)
{
	(void) sig;
	spot();
	STAY();
}

static NOINLINE void
second(int sig)
{
	char		locals[200];

	locals[0] = (char) sig;
	__asm__ volatile("" :: "r"(locals) : "memory");
	raise(SIGALRM);
	STAY();
}

static NOINLINE void
first(int sig, siginfo_t *info, void *context)
{
	(void) sig;
	(void) info;
	(void) context;
	raise(SIGUSR2);
	STAY();
}

static NOINLINE void
interrupted(void)
{
	kill(getpid(), SIGUSR1);
	STAY();
}

int
main(void)
{
	stack_t		stack = {.ss_size = 256 * 1024};
	struct sigaction action = {.sa_sigaction = first, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	stack.ss_sp = mmap(NULL, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack.ss_sp == MAP_FAILED || sigaltstack(&stack, NULL) != 0)
		abort();
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGUSR2, second);
	signal(SIGALRM, third);
	interrupted();
	STAY();
	return 0;
}
