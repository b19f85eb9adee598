/*
 * steps.c: what makes the stack of calls change in other ways than by call and return, once each: signal handlers, one
 * in another, one that is left by siglongjmp, one of an ignored signal; vfork and fork; functions that the C library
 * calls back.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile int count;

static void
nested(int signal)
{
	count++;
	if (signal == SIGUSR1)
		raise(SIGUSR2);
}

static void
leave(int signal)
{
	(void) signal;
	siglongjmp(back, 1);
}

static int
compare(const void *a, const void *b)
{
	return *(const int *) a - *(const int *) b;
}

static void
children(void)
{
	pid_t		child = vfork();

	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	child = fork();
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
}

int
main(void)
{
	int			numbers[20];
	char		text[64];
	char	   *copy;

	signal(SIGUSR1, nested);
	signal(SIGUSR2, nested);
	signal(SIGSEGV, leave);
	signal(SIGCHLD, SIG_IGN);
	raise(SIGUSR1);
	if (sigsetjmp(back, 1) == 0)
		raise(SIGSEGV);
	for (int i = 0; i < 20; i++)
		numbers[i] = i * 37 % 20;
	qsort(numbers, 20, sizeof(*numbers), compare);
	children();
	snprintf(text, sizeof(text), "%d %s %f", count, "x", 1.5 * numbers[3]);
	copy = strdup(text);
	memmove(text, copy, strlen(copy));
	free(copy);
	return count == 2 ? 0 : 1;
}
