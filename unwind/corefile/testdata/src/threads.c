/* Three threads that wait, and a signal handler that ends the program inside the C library's qsort. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int compare(const void *a, const void *b)
{
	static int n;
	(void)a, (void)b;
	if (++n == 5)
		*(volatile int *)8 = 1;
	return 1;
}

__attribute__((noinline)) void handler(int sig, siginfo_t *info, void *context)
{
	char text[100];
	(void)sig, (void)info;
	snprintf(text, sizeof text, "%p", context);
	abort();
}

static void *waiter(void *p)
{
	pause();
	return p;
}

int main(void)
{
	pthread_t t;
	for (int i = 0; i < 3; i++)
		pthread_create(&t, 0, waiter, 0);
	usleep(300000);
	struct sigaction act;
	memset(&act, 0, sizeof act);
	act.sa_sigaction = handler;
	act.sa_flags = SA_SIGINFO;
	sigaction(SIGSEGV, &act, 0);
	int v[16] = { 5, 4, 3, 2, 1 };
	qsort(v, 16, sizeof(int), compare);
	return v[0];
}
