// coroutines: a process whose main thread runs coroutines on stacks of their own, as the first argument says, for the
// tests of Options.Coroutines. It prints where, from the thread pointer, the pointer to the running coroutine is, and
// the limits of the coroutine's stack.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

enum { size = 32 << 10, beyond = 64 << 10 };

struct coroutine { uint64_t low, high, unused[4]; struct owner *owner; uint64_t saved; };
struct owner { struct coroutine *own, *other, *first; uint64_t words[29]; };

static __thread struct coroutine *volatile running;
static struct coroutine own, other, dead;
static struct owner owner = {&own, &other, &dead, {0}};
static ucontext_t here, there;
static volatile int stay = 1;

static void rest(void) { while (stay) pause(); }

static void ready(void)
{
	printf("ready %ld %p %p\n", (long)((char *)&running - (char *)__builtin_thread_pointer()), (void *)other.low,
		(void *)other.high);
	fflush(stdout);
}

static void elsewhere(void) { running = &other; ready(); rest(); }

// churn lets everything point anywhere, all the time.
static void churn(char *stack)
{
	uint64_t values[] = {0, 1, 8, 4096, -1UL, -8UL, (uint64_t)&own, (uint64_t)&other, (uint64_t)&owner, (uint64_t)stack,
		(uint64_t)stack + size, (uint64_t)stack + size + beyond, (uint64_t)&values, 1UL << 47, 0xffffffffff600000UL};
	uint64_t *words[] = {(uint64_t *)&own, (uint64_t *)&other, (uint64_t *)&owner};
	uint64_t random = 1;
	running = &other;
	for (;;) {
		random = random * 6364136223846793005UL + 1442695040888963407UL;
		int which = (random >> 40) % 3;
		int word = (random >> 44) % (which < 2 ? sizeof own / 8 : sizeof owner / 8);
		((volatile uint64_t *)words[which])[word] = values[(random >> 52) % (sizeof values / sizeof *values)];
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	prctl(PR_SET_PTRACER, -1L);
	char *stack = mmap(0, size + beyond, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED)
		return 3;
	own = (struct coroutine){(uint64_t)&stack - 8192, (uint64_t)&stack + 1024, {0}, &owner, (uint64_t)&stack & ~7UL};
	other = (struct coroutine){(uint64_t)stack, (uint64_t)stack + size, {0}, &owner, (uint64_t)stack + size - 4096};
	running = &own;
	memset(stack, 'x', size + beyond);
	strcpy(stack + size - 4096, "where it was left");
	if (!strcmp(what, "own")) ready(), rest();
	if (!strcmp(what, "lower")) { // a register, or the stack, says that it is in use from further below on
		char *volatile lower = stack + size - 8192;
		(void)lower;
		ready();
		rest();
	}
	if (!strcmp(what, "stranger")) owner.other = 0, owner.own = 0, ready(), rest();
	if (!strcmp(what, "empty")) other.low = other.high, own.high = own.low, ready(), rest();
	if (!strcmp(what, "nowhere")) own.owner = (struct owner *)4096, ready(), rest();
	if (!strcmp(what, "odd")) running = (struct coroutine *)((char *)&own + 4), ready(), rest();
	if (!strcmp(what, "none")) running = 0, ready(), rest();
	if (!strcmp(what, "churn")) ready(), churn(stack);
	if (!strcmp(what, "other")) {
		getcontext(&there);
		there.uc_stack.ss_sp = stack;
		there.uc_stack.ss_size = size;
		makecontext(&there, elsewhere, 0);
		swapcontext(&here, &there);
	}
	return 0;
}
