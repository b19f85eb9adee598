/* constructor.c: a library that spins while it is loaded. */
static volatile int on = 1;

static int __attribute__((noinline))
inside(volatile int *times)
{
	volatile int room[8] = {0};

	while (on)
		room[*times % 8]++;
	return room[0];
}

static void __attribute__((constructor))
spin(void)
{
	volatile int times = 1;

	times = inside(&times);
}
