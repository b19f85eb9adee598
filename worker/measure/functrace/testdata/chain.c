/* Calls functions along known chains, for tests that trace them.
 *
 * Each function notes its return address before it calls the next one. So the program knows the stack of each call, up
 * to the call of chains by main. In a first round it prints them: the function and the return addresses, the innermost
 * one first. The argument is the number of rounds that follow; each calls every chain once. Before the first round, the
 * rounds that follow, and the end, it prints "ready" and waits for a line of input. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))
#define RETURN_ADDRESS ((unsigned long)__builtin_extract_return_addr(__builtin_return_address(0)))

enum { DEPTH = 40 };

static volatile unsigned long addresses[DEPTH]; /* by depth: chains has the first one */
static volatile int calls;

/* A leaf keeps its return address in the register in which it got it, where there is one. */
NOINLINE void leaf(int depth)
{
	addresses[depth] = RETURN_ADDRESS;
	calls++;
}

NOINLINE void middle(int depth)
{
	addresses[depth] = RETURN_ADDRESS;
	leaf(depth + 1);
	calls++;
}

NOINLINE void outer(int depth)
{
	addresses[depth] = RETURN_ADDRESS;
	middle(depth + 1);
	calls++;
}

/* target is entered by a jump: its return address is that of the function which jumps, so the jumping function has no frame. */
NOINLINE void target(int depth)
{
	addresses[depth] = RETURN_ADDRESS;
	calls++;
}

NOINLINE void jumps(int depth)
{
	target(depth);
}

NOINLINE void to_jump(int depth)
{
	addresses[depth] = RETURN_ADDRESS;
	jumps(depth + 1);
	calls++;
}

/* framed saves the return address in its frame at once, and has arrays of several sizes below it. */
NOINLINE void framed(int depth)
{
	volatile char room[200];

	addresses[depth] = RETURN_ADDRESS;
	room[depth] = 1;
	leaf(depth + 1);
	calls += room[depth];
}

NOINLINE void deeper(int depth, int more)
{
	volatile char room[64];

	addresses[depth] = RETURN_ADDRESS;
	room[more] = 1;
	if (more > 0)
		deeper(depth + 1, more - 1);
	else
		framed(depth + 1);
	calls += room[more];
}

static volatile int show, done;

static void print(const char *function, int depth)
{
	if (!show)
		return;
	printf("%s", function);
	for (; depth >= 0; depth--)
		printf(" %lx", addresses[depth]);
	printf("\n");
}

/* chains calls every chain, and prints the stacks of the calls. */
NOINLINE void chains(void)
{
	addresses[0] = RETURN_ADDRESS;
	outer(1);
	print("leaf", 3);
	print("middle", 2);
	to_jump(1);
	print("target", 2);
	deeper(1, 20);
	print("leaf", 23);
	print("framed", 22);
}

int main(int count, char **arguments)
{
	int rounds = count > 1 ? atoi(arguments[1]) : 1;

	for (done = -1; done < rounds; done++) {
		show = done < 0;
		if (done <= 0) {
			puts("ready");
			fflush(stdout);
			if (getchar() == EOF)
				return 1;
		}
		chains();
	}
	puts("ready");
	fflush(stdout);
	return getchar() == EOF;
}
