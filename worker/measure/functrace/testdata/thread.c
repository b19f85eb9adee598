/* Calls a function below 64 KiB of frames on stacks that are not the main thread's: on a thread's stack (reached), and
 * on a stack that the program has made itself, far below the thread's stack (switched). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline, noclone))

enum { DEPTH = 64, ROOM = 1024, STACK = 1 << 18, FAR = 1 << 27 };

static volatile int calls;
static int rounds;
static ucontext_t outside, inside;

NOINLINE void reached(void)
{
	calls++;
}

NOINLINE void switched(void)
{
	calls++;
}

NOINLINE static void deeper(int more, void (*function)(void))
{
	volatile char room[ROOM];

	room[more] = 1;
	if (more > 0)
		deeper(more - 1, function);
	else
		function();
	calls += room[more];
}

static void on_own_stack(void)
{
	for (int i = 0; i < rounds; i++)
		deeper(DEPTH, switched);
}

static void *thread(void *unused)
{
	for (int i = 0; i < rounds; i++)
		deeper(DEPTH, reached);
	getcontext(&inside);
	inside.uc_stack.ss_sp = mmap(NULL, FAR, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	inside.uc_stack.ss_size = STACK;
	inside.uc_link = &outside;
	makecontext(&inside, on_own_stack, 0);
	swapcontext(&outside, &inside);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t t;

	rounds = argc > 1 ? atoi(argv[1]) : 1;
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF) {
		if (pthread_create(&t, NULL, thread, NULL) || pthread_join(t, NULL))
			abort();
		puts("ready");
		fflush(stdout);
	}
}
