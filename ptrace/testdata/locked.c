// locked: has a thread that keeps the address space locked while it waits for a file system, one that waits to change
// it, and the main thread, which rests. First argument: a file in that file system. It begins when it is told to.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };

static void *change(void *arg)
{
	for (;;) {
		void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p != MAP_FAILED)
			munmap(p, 4096);
		usleep(1000);
	}
	return arg;
}

static void *hold(void *m)
{
	memset(m, 2, SIZE);
	munmap(m, SIZE);	// writes what was changed back, and has the address space locked meanwhile
	puts("done");
	fflush(stdout);
	return NULL;
}

int main(int argc, char **argv)
{
	int fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
	char *m, c;
	pthread_t t;
	if (fd < 0 || ftruncate(fd, SIZE))
		return 1;
	m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED)
		return 1;
	memset(m, 1, SIZE);
	puts("ready");
	fflush(stdout);
	if (read(0, &c, 1) != 1 || pthread_create(&t, NULL, hold, m) || pthread_create(&t, NULL, change, NULL))
		return 1;
	for (;;)
		pause();
}
