/* The program calls a function whose frame is larger than any stack that the program has used. When the function's
 * first instructions run, the memory at the stack pointer does not exist yet. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static void reserve(void)
{
	volatile char room[1 << 18];

#if defined(__x86_64__)
	__asm__ volatile("nop"); /* where a probe costs least */
#endif
	room[sizeof(room) - 1] = 1;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;

	puts("ready");
	fflush(stdout);
	while (getchar() != EOF) {
		for (int i = 0; i < rounds; i++) {
			reserve();
			__asm__ volatile("" ::: "memory"); /* no jump to reserve */
		}
		puts("ready");
		fflush(stdout);
	}
}
