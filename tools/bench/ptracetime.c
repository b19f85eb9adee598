//go:build ignore

/*
 * ptracetime.c: measures from inside a foreign tool (eu-stack, gdb) how long it stops its target. It is a library for
 * LD_PRELOAD that intercepts ptrace() and waitpid(). It does not change the work of the tool.
 *
 * The spans are those of tracer.h. window is from the call of ATTACH or SEIZE to the return of DETACH. pause is from
 * the moment when the tool knows of the stop. That is the return of waitpid() or, for tools that find out by other
 * means (tbstack reads the state in /proc), the first request or signal afterwards. Each detach of process BENCH_PID
 * appends a line "PAUSE_NS WINDOW_NS" to the file BENCH_PTRACE_LOG.
 *
 *     cc -O2 -Wall -Wextra -shared -fPIC -o ptracetime.so ptracetime.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

typedef long (*ptrace_function) (enum __ptrace_request, ...);
typedef int (*kill_function) (pid_t, int);
typedef pid_t (*waitpid_function) (pid_t, int *, int);

static int64_t attached;
static int64_t stopped;

static int64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static pid_t
target(void)
{
	static pid_t pid;
	const char *text;

	if (pid == 0 && (text = getenv("BENCH_PID")) != NULL)
		pid = (pid_t) strtol(text, NULL, 10);
	return pid;
}

static void
report(int64_t end)
{
	const char *path = getenv("BENCH_PTRACE_LOG");
	FILE	   *log = path == NULL ? NULL : fopen(path, "a");

	if (log == NULL)
		return;
	fprintf(log, "%lld %lld\n", (long long) (end - stopped), (long long) (end - attached));
	fclose(log);
}

/* The tool acts on a stopped target. */
static void
acts(void)
{
	if (attached != 0 && stopped == 0)
		stopped = now_ns();
}

long
ptrace(enum __ptrace_request request, ...)
{
	static ptrace_function next;
	va_list		arguments;
	pid_t		pid;
	void	   *addr;
	void	   *data;
	int64_t		start = 0;
	long		result;

	va_start(arguments, request);
	pid = va_arg(arguments, pid_t);
	addr = va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "ptrace");
	if (request == PTRACE_ATTACH || request == PTRACE_SEIZE)
		start = now_ns();
	else if (pid == target())
		acts();
	result = next(request, pid, addr, data);
	if (result < 0 || pid != target())
		return result;
	if (start != 0)
	{
		attached = start;
		stopped = 0;
	}
	else if (request == PTRACE_DETACH && stopped != 0)
	{
		int			saved = errno;

		report(now_ns());
		errno = saved;
		attached = 0;
	}
	return result;
}

int
kill(pid_t pid, int signal)
{
	static kill_function next;

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "kill");
	if (pid == target())
		acts();
	return next(pid, signal);
}

pid_t
waitpid(pid_t pid, int *status, int options)
{
	static waitpid_function next;
	pid_t		result;

	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "waitpid");
	result = next(pid, status, options);
	if (result > 0 && result == target())
		acts();
	return result;
}
