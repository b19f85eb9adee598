/*
 * A process that sits still three known calls deep: outer -> middle -> inner.
 *
 *	nest			in pause()
 *	nest altstack		in pause() in a signal handler on an alternate stack
 *	nest null		in the handler of the SIGSEGV of a call through NULL
 *	nest deep N		N recursive calls deep
 *	nest vfork		in vfork(), in uninterruptible sleep, until its child ends
 *	nest busy		does not sit still, but spins in spin()
 *
 * It writes a byte to standard output when it is there, or nearly: the reader
 * then waits until the process sleeps.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char *mode = "";
static volatile int depth;
static void (*volatile nowhere)(void);

__attribute__((noinline)) static void
ready(void)
{
	if (write(1, "r", 1) != 1)
		_exit(3);
	while (nowhere == NULL)
		pause();
}

__attribute__((noinline)) static void
handler(int sig)
{
	(void) sig;
	ready();
	__asm__ volatile("");
}

__attribute__((noinline)) static int
recurse(int n)
{
	if (n == 0) {
		ready();
		return 0;
	}
	return recurse(n - 1) + depth;
}

__attribute__((noinline)) static void
spin(void)
{
	if (write(1, "r", 1) != 1)
		_exit(3);
	while (nowhere == NULL)
		depth++;
}

__attribute__((noinline)) static void
fork_and_wait(void)
{
	if (vfork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (write(1, "r", 1) != 1)
			_exit(3);
		for (;;)
			pause();
	}
	__asm__ volatile("");
}

__attribute__((noinline)) void
inner(void)
{
	if (strcmp(mode, "altstack") == 0)
		raise(SIGUSR1);
	else if (strcmp(mode, "null") == 0)
		nowhere();
	else if (strcmp(mode, "vfork") == 0)
		fork_and_wait();
	else if (strcmp(mode, "busy") == 0)
		spin();
	else if (strcmp(mode, "deep") == 0)
		depth += recurse(depth);
	else
		ready();
	__asm__ volatile("");
}

__attribute__((noinline)) void
middle(void)
{
	inner();
	__asm__ volatile("");
}

__attribute__((noinline)) void
outer(void)
{
	middle();
	__asm__ volatile("");
}

int
main(int argc, char **argv)
{
	size_t size = 1 << 16;
	stack_t ss = {.ss_size = size};
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_ONSTACK};

	if (argc > 1)
		mode = argv[1];
	if (argc > 2)
		depth = atoi(argv[2]);
	ss.ss_sp = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ss.ss_sp == MAP_FAILED || sigaltstack(&ss, NULL) != 0)
		return 2;
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	outer();
	return 0;
}
