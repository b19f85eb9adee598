/*
 * Loaded into a server with LD_PRELOAD. Makes a backend do, on a signal that PostgreSQL leaves alone, what a backend
 * does not do by itself:
 *
 *   SIGRTMIN + 1  wait, until another signal arrives, in a function whose name is not ASCII
 *   SIGRTMIN + 2  wait uninterruptibly in the kernel (state D), until its child is killed: vfork(2)
 *   SIGRTMIN + 3  make itself undumpable, which keeps others of the same user from tracing it: prctl(2)
 */
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <unistd.h>

__attribute__((noinline)) void naïve_日本_функция(int number)
{
	pause();
	__asm__ volatile("" : : "r"(number) : "memory"); /* no tail call */
}

static void sleep_in_kernel(int number)
{
	(void) number;
	if (vfork() == 0) {
		for (;;)
			pause();
	}
}

static void undumpable(int number)
{
	(void) number;
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

__attribute__((constructor)) static void install(void)
{
	void (*handlers[])(int) = { naïve_日本_функция, sleep_in_kernel, undumpable };
	for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
		struct sigaction action = { .sa_handler = handlers[i], .sa_flags = SA_RESTART };
		sigaction(SIGRTMIN + 1 + (int) i, &action, NULL);
	}
}
