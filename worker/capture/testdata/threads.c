/*
 * A process of many threads: half of them stay, the others come and go.
 *
 *	threads N
 *
 * Each that stays waits in resting(), each that goes in passing() for up to
 * 100 ms. A byte is written to standard output when all have been started.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile int never;

__attribute__((noinline)) static void
resting(void)
{
	while (!never)
		pause();
}

__attribute__((noinline)) static void
passing(unsigned seed)
{
	struct timespec nap = {0, 1000000 + rand_r(&seed) % 99000000};

	nanosleep(&nap, NULL);
	never = 0;
}

static void *
rest(void *arg)
{
	resting();
	return arg;
}

static void *
pass(void *arg)
{
	passing((unsigned) (size_t) arg);
	return arg;
}

int
main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 10;
	pthread_t *t = calloc((size_t) n, sizeof *t);
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], &attr, i % 2 ? rest : pass, (void *) (size_t) i))
			return 2;
	if (write(1, "r", 1) != 1)
		return 3;
	for (size_t round = 1;; round++)
		for (int i = 0; i < n; i += 2) {
			pthread_join(t[i], NULL);
			if (pthread_create(&t[i], &attr, pass, (void *) (round * 1000 + (size_t) i)))
				return 4;
		}
}
