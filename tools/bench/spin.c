//go:build ignore

/*
 * spin.c: a target that measures its own pauses. It reads CLOCK_MONOTONIC without end, below a few frames of stack.
 * It writes every gap between two readings that is longer than THRESHOLD_NS into a ring in a shared file. It must not
 * depend on the tool that stops it. The gaps include the machine's own noise (ticks, preemption), which the reader
 * takes into account.
 *
 * The file: uint64 number of gaps ever written, uint64 THRESHOLD_NS, then RING pairs of uint64 (clock when the gap
 * ended, its length), in nanoseconds. Ends by itself when its parent does, or after ten minutes.
 *
 *     cc -O2 -Wall -Wextra -o spin spin.c && ./spin FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define RING 65536
#define THRESHOLD_NS 1000

struct gap
{
	uint64_t	end;
	uint64_t	length;
};

struct gaps
{
	_Atomic uint64_t count;
	uint64_t	threshold;
	struct gap	ring[RING];
};

static uint64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t) ts.tv_sec * 1000000000 + (uint64_t) ts.tv_nsec;
}

static void __attribute__((noinline))
spin(struct gaps *gaps)
{
	uint64_t	last = now_ns();
	uint64_t	count = 0;

	for (;;)
	{
		uint64_t	now = now_ns();

		if (now - last > THRESHOLD_NS)
		{
			gaps->ring[count % RING] = (struct gap) {now, now - last};
			atomic_store_explicit(&gaps->count, ++count, memory_order_release);
			now = now_ns();		/* writing a gap is no gap */
		}
		last = now;
	}
}

/* Frames for a stack of a usual depth. */
static int __attribute__((noinline))
descend(struct gaps *gaps, int depth)
{
	volatile int below = depth > 0 ? descend(gaps, depth - 1) : 0;

	if (depth == 0)
		spin(gaps);
	return below;
}

int
main(int argc, char **argv)
{
	struct gaps *gaps;
	int			fd;

	if (argc != 2)
	{
		fprintf(stderr, "usage: %s FILE\n", argv[0]);
		return 2;
	}
	fd = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(struct gaps)) < 0)
	{
		perror(argv[1]);
		return 1;
	}
	gaps = mmap(NULL, sizeof(struct gaps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (gaps == MAP_FAILED)
	{
		perror("mmap");
		return 1;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(600);
	gaps->threshold = THRESHOLD_NS;
	return descend(gaps, 16);
}
