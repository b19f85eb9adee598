/* Three threads: one in main, two below functions of their own. The last to arrive is at the spot. */
#include "spot.h"

#include <pthread.h>

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all;

static NOINLINE void
wait_for_mutex(void)
{
	pthread_barrier_wait(&all);
	pthread_mutex_lock(&held);
	STAY();
}

static void *
blocked(void *argument)
{
	wait_for_mutex();
	STAY();
	return argument;
}

static void *
sleeping(void *argument)
{
	pthread_barrier_wait(&all);
	spot();
	STAY();
	return argument;
}

int
main(void)
{
	pthread_t	a;
	pthread_t	b;

	pthread_mutex_lock(&held);
	pthread_barrier_init(&all, NULL, 3);
	pthread_create(&a, NULL, blocked, NULL);
	pthread_create(&b, NULL, sleeping, NULL);
	pthread_barrier_wait(&all);
	pthread_join(a, NULL);
	STAY();
	return 0;
}
