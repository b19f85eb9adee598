/* Prints how many instructions system calls take, where the time stamp counter counts instructions (qemu -icount). Each
 * line has a call and the fewest instructions of a call in several rounds. */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

enum { CALLS = 500, ROUNDS = 15 };

static int epoll, pipes[2];
static char byte;

static void call_getppid(void) { syscall(SYS_getppid); }
static void call_getuid(void) { syscall(SYS_getuid); }
static void call_lseek(void) { syscall(SYS_lseek, 0, 0, SEEK_CUR); }
static void call_sendto(void) { syscall(SYS_sendto, -1, &byte, 1, 0, 0, 0); }
static void call_recvfrom(void) { syscall(SYS_recvfrom, -1, &byte, 1, 0, 0, 0); }
static void call_pread64(void) { syscall(SYS_pread64, pipes[0], &byte, 1, 0); }

static void call_epoll_wait(void)
{
	struct epoll_event event;

	syscall(SYS_epoll_wait, epoll, &event, 1, 0);
}

static const struct {
	const char *name;
	void (*call)(void);
} list[] = {
	{"getppid", call_getppid}, {"getuid", call_getuid}, {"lseek", call_lseek}, {"sendto", call_sendto},
	{"recvfrom", call_recvfrom}, {"pread64", call_pread64}, {"epoll_wait", call_epoll_wait},
};

int main(void)
{
	epoll = epoll_create1(0);
	if (epoll < 0 || pipe(pipes))
		return 1;
	for (unsigned i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		unsigned long long fewest = ~0ULL;

		for (int round = 0; round < ROUNDS; round++) {
			unsigned long long began = __rdtsc(), took;

			for (int n = 0; n < CALLS; n++)
				list[i].call();
			took = __rdtsc() - began;
			if (took < fewest)
				fewest = took;
		}
		printf("%s %.2f\n", list[i].name, (double)fewest / CALLS);
	}
	return 0;
}
