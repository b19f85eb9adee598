//go:build ignore

/*
 * tracer.h: common parts of the C programs in this directory: the clock, the samples and their percentiles, and the
 * stop of a process by SEIZE + INTERRUPT. It must not depend on the work done during the stop.
 *
 * (The build line above keeps the Go tool from compiling C files of this directory.)
 *
 * Three spans are taken of each capture, so that every reading of "pause" can be compared with the same one:
 *   pause    from the moment the tracer knows of the stop to the return of DETACH
 *   window   from the call of INTERRUPT to the return of DETACH: never shorter than the target's real pause
 *   call     from the call of SEIZE to the return of DETACH
 */
#ifndef BENCH_TRACER_H
#define BENCH_TRACER_H

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS 100000

enum { SPAN_PAUSE, SPAN_WINDOW, SPAN_CALL, SPANS };

struct bench
{
	pid_t		pid;
	int			repeat;
	long		interval_us;
	int			done;			/* samples taken so far */
	int64_t    *ns[SPANS];
	int64_t		seized;			/* clock at the call of SEIZE, of the capture at hand */
	int64_t		interrupted;	/* ... at the call of INTERRUPT */
	int64_t		stopped;		/* ... when the stop was known */
};

static inline int64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void __attribute__((noreturn))
fail(const char *what, pid_t pid)
{
	fprintf(stderr, "%s (process %d): %s\n", what, (int) pid, strerror(errno));
	exit(1);
}

/*
 * Waits for the target's next event. It polls without sleeping, for POLL_NS at most. A sleeping tracer has to be
 * woken up while the target is stopped, which doubles the pause that the target sees (22 and 46 us on the machine
 * where this was written; see spin.c). It does not poll for longer: on the target's own processor that would keep the
 * target from stopping.
 */
static int
next_status(pid_t pid)
{
	int64_t		start = now_ns();
	int			flags = __WALL | WNOHANG;
	int			status;

	for (;;)
	{
		pid_t		who = waitpid(pid, &status, flags);

		if (who > 0)
			return status;
		if (who < 0 && errno != EINTR)
			fail("waitpid", pid);
		if (now_ns() - start > POLL_NS)
			flags = __WALL;
	}
}

/* Waits for the stop that INTERRUPT requested. Signals for the target are delivered. */
static void
wait_for_stop(pid_t pid)
{
	for (;;)
	{
		int			status = next_status(pid);

		if (!WIFSTOPPED(status))
		{
			errno = ESRCH;
			fail("target ended", pid);
		}
		if (status >> 16 == PTRACE_EVENT_STOP)
			return;
		if (ptrace(PTRACE_CONT, pid, NULL, (void *) (intptr_t) WSTOPSIG(status)) < 0)
			fail("PTRACE_CONT", pid);
	}
}

static void
bench_stop(struct bench *b)
{
	b->seized = now_ns();
	if (ptrace(PTRACE_SEIZE, b->pid, NULL, NULL) < 0)
		fail("PTRACE_SEIZE", b->pid);
	b->interrupted = now_ns();
	if (ptrace(PTRACE_INTERRUPT, b->pid, NULL, NULL) < 0)
		fail("PTRACE_INTERRUPT", b->pid);
	wait_for_stop(b->pid);
	b->stopped = now_ns();
}

static void
bench_release(struct bench *b)
{
	int64_t		end;

	if (ptrace(PTRACE_DETACH, b->pid, NULL, NULL) < 0)
		fail("PTRACE_DETACH", b->pid);
	end = now_ns();
	b->ns[SPAN_PAUSE][b->done] = end - b->stopped;
	b->ns[SPAN_WINDOW][b->done] = end - b->interrupted;
	b->ns[SPAN_CALL][b->done] = end - b->seized;
	b->done++;
	if (b->interval_us > 0)
		usleep((useconds_t) b->interval_us);
}

static long
number(const char *text, long low, long high, const char *what)
{
	char	   *end;
	long		n = strtol(text, &end, 10);

	if (*text == '\0' || *end != '\0' || n < low || n > high)
	{
		fprintf(stderr, "%s: not a number from %ld to %ld: \"%s\"\n", what, low, high, text);
		exit(2);
	}
	return n;
}

/* Command line of every program here: REPEAT INTERVAL_US PID. */
static struct bench
bench_open(int argc, char **argv)
{
	struct bench b = {0};

	if (argc != 4)
	{
		fprintf(stderr, "usage: %s REPEAT INTERVAL_US PID\n", argv[0]);
		exit(2);
	}
	b.repeat = (int) number(argv[1], 1, 10000000, "REPEAT");
	b.interval_us = number(argv[2], 0, 999999, "INTERVAL_US");
	b.pid = (pid_t) number(argv[3], 1, INT32_MAX, "PID");
	for (int i = 0; i < SPANS; i++)
	{
		b.ns[i] = calloc((size_t) b.repeat, sizeof(int64_t));
		if (b.ns[i] == NULL)
			fail("calloc", b.pid);
		/* touch it: no page fault of ours belongs into a span */
		memset(b.ns[i], 1, (size_t) b.repeat * sizeof(int64_t));
	}
	return b;
}

static int
by_value(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return (x > y) - (x < y);
}

/* Nearest-rank percentile of sorted samples, in microseconds. */
static double
percentile(const int64_t *sorted, int n, int p)
{
	return (double) sorted[(int) (((int64_t) n * p + 99) / 100) - 1] / 1000;
}

/* One JSON object with all spans; extra is more members, each with a leading comma. */
static void
bench_print(struct bench *b, const char *extra)
{
	static const char *const names[SPANS] = {"pause_us", "window_us", "call_us"};

	printf("{\"count\":%d", b->done);
	for (int i = 0; i < SPANS; i++)
	{
		qsort(b->ns[i], (size_t) b->done, sizeof(int64_t), by_value);
		printf(",\"%s\":{\"p50\":%.2f,\"p99\":%.2f,\"max\":%.2f}", names[i],
			   percentile(b->ns[i], b->done, 50), percentile(b->ns[i], b->done, 99),
			   percentile(b->ns[i], b->done, 100));
		free(b->ns[i]);
	}
	printf("%s}\n", extra);
}

#endif
