/* Executes allocations: each line of the standard input is a command, and "ok" is the answer. Its buffers are static, so
 * that only the commands allocate. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char in[4096], out[4096];
static void *old[1000];

__attribute__((noinline)) static void *take(size_t size)
{
	void *p = malloc(size);

	__asm__ volatile("" : : "r"(p) : "memory");
	return p;
}

__attribute__((noinline)) static void *deep(int depth, size_t size)
{
	volatile char room[256];
	void *p;

	room[0] = depth;
	p = depth > 0 ? deep(depth - 1, size) : take(size);
	room[1] = room[0];
	return p;
}

/* churn allocates and frees so often, below so much stack. */
__attribute__((noinline)) static void churn(long times, int depth)
{
	volatile char room[256];

	room[0] = depth;
	if (depth > 0)
		churn(times, depth - 1);
	else
		while (times-- > 0)
			free(take(100));
	room[1] = room[0];
}

static void *thread(void *count)
{
	for (long i = 0; i < (long)count; i++) {
		void *keep = take(100), *gone = take(50);

		__asm__ volatile("" : : "r"(keep) : "memory");
		free(gone);
	}
	return NULL;
}

/* The compiler must not leave out an allocation whose result nothing uses. */
#define KEEP(p) __asm__ volatile("" : "+r"(p) : : "memory")

/* mix leaves 9 blocks and mappings with 1000 + 3000 + 500 + 640 + 700 + 11 + 0 + 8192 + 12288 bytes. */
__attribute__((noinline)) static void mix(void)
{
	void *aligned = NULL, *p, *none = NULL;
	char *map;

	p = calloc(10, 100);
	KEEP(p);
	KEEP(none);
	p = realloc(none, 2000);	/* calls malloc */
	KEEP(p);
	p = realloc(p, 200000);	/* has a mapping of its own */
	KEEP(p);
	p = realloc(p, 3000);
	KEEP(p);
	p = malloc(10);
	KEEP(p);
	p = realloc(p, 0);	/* frees */
	if (posix_memalign(&aligned, 64, 500))
		abort();
	p = aligned_alloc(64, 640);
	KEEP(p);
	p = memalign(64, 700);
	KEEP(p);
	p = strdup("0123456789");
	KEEP(p);
	p = malloc(0);
	KEEP(p);
	free(NULL);
	p = malloc((size_t)1 << 62); /* fails */
	KEEP(p);
	if (posix_memalign(&aligned, 64, (size_t)1 << 62) == 0)
		abort();
	p = malloc(300000);
	KEEP(p);
	free(p);	/* calls munmap */
	map = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(map, 8192);	/* its first half */
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	map = mremap(map, 4096, 12288, MREMAP_MAYMOVE);
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(map, 4096);
	mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

int main(void)
{
	char line[100];
	long n, size;

	setvbuf(stdin, in, _IOFBF, sizeof(in));
	setvbuf(stdout, out, _IOLBF, sizeof(out));
	for (int i = 0; i < 1000; i++)
		old[i] = malloc(1000);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "leak %ld %ld", &n, &size) == 2) {
			for (long i = 0; i < n; i++)
				take(size);
		} else if (sscanf(line, "deep %ld %ld", &n, &size) == 2) {
			deep(n, size);
		} else if (sscanf(line, "churn %ld %ld", &n, &size) == 2) {
			churn(n, size);
		} else if (strcmp(line, "mix\n") == 0) {
			mix();
		} else if (sscanf(line, "older %ld", &n) == 1) {
			for (long i = 0; i < n; i++)
				free(old[i]);
		} else if (sscanf(line, "grow %ld", &n) == 1) {
			old[n] = realloc(old[n], 5000);
		} else if (sscanf(line, "threads %ld %ld", &n, &size) == 2) {
			pthread_t t[64];

			for (long i = 0; i < n; i++)
				pthread_create(&t[i], NULL, thread, (void *)size);
			for (long i = 0; i < n; i++)
				pthread_join(t[i], NULL);
		} else if (sscanf(line, "successive %ld", &n) == 1) { /* threads, one after another */
			pthread_t t;

			for (long i = 0; i < n; i++) {
				if (pthread_create(&t, NULL, thread, (void *)1))
					abort();
				pthread_join(t, NULL);
			}
		} else if (sscanf(line, "fork %ld", &n) == 1) {
			if (fork() == 0) {
				for (long i = 0; i < n; i++)
					take(100);
				_exit(0);
			}
			wait(NULL);
		} else if (strcmp(line, "spin\n") == 0) {
			for (;;)
				free(take(100));
		}
		puts("ok");
	}
	return 0;
}
