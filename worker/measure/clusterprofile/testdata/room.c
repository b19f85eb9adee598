/* A library for LD_PRELOAD. sin() works for a second or more in a frame of 256 KiB, and has touched the upper end of it
 * only: the memory at the stack pointer does not exist then. */
double sin(double x)
{
	volatile char room[1 << 18];
	unsigned long rounds = 3000000000;

	room[sizeof(room) - 1] = 1;
	__asm__ volatile("1: dec %0; jnz 1b" : "+r"(rounds));
	return x;
}
