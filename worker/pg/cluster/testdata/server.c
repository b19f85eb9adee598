/*
 * A program with the variables of a PostgreSQL server, which moves its own code to other memory as libraries for huge
 * pages do: server WHAT WHERE. It prints the address of a variable and waits. With -DLIBRARY only the variables are
 * compiled, with -DMAIN only the rest.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAIN
static uint32_t event;
uint32_t *my_wait_event_info = &event;
void *error_context_stack;
const char *debug_query_string = "";
#else
extern uint32_t *my_wait_event_info;
#endif

#ifndef LIBRARY
__asm__(".text\n.skip 40960, 0xcc\n");

static __attribute__((noinline)) void move(char *at, size_t n, int prot, const char *where)
{
	char *new;
	if (!strcmp(where, "anonymous")) {
		new = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memcpy(new, at, n);
		mprotect(new, n, prot);
		mremap(new, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, at);
		return;
	}
	int fd;
	if (!strcmp(where, "memfd")) {
		fd = memfd_create("code", 0);
	} else { /* a deleted file of tmpfs */
		char name[64];
		snprintf(name, sizeof name, "/dev/shm/code.%d", getpid());
		fd = open(name, O_RDWR | O_CREAT, 0700);
		unlink(name);
	}
	if (write(fd, at, n) != (ssize_t)n)
		_exit(1);
	mmap(at, n, prot, MAP_PRIVATE | MAP_FIXED, fd, 0);
}

struct mapping { unsigned long start, end; int prot; };

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "nothing", *where = argc > 2 ? argv[2] : "";
	struct mapping list[32];
	int count = 0;
	char line[512], perms[8];
	FILE *maps = fopen("/proc/self/maps", "r");
	if (!strcmp(what, "copy")) { /* a second mapping of the file, below the program */
		int fd = open(argv[2], O_RDONLY);
		mmap((void *)0x10000000, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);
	}
	while (count < 32 && fgets(line, sizeof line, maps)) {
		struct mapping *m = &list[count];
		if (!strstr(line, "/server\n") || sscanf(line, "%lx-%lx %7s", &m->start, &m->end, perms) != 3)
			continue;
		m->prot = (perms[0] == 'r' ? PROT_READ : 0) | (perms[1] == 'w' ? PROT_WRITE : 0) |
			(perms[2] == 'x' ? PROT_EXEC : 0);
		int code = m->prot & PROT_EXEC, data = m->prot & PROT_WRITE;
		if (!strcmp(what, "part") && code) {
			m->start += 4096;
			m->end = m->start + 8192;
		}
		count += !strcmp(what, "all") || !strcmp(what, "header") && !data ||
			(!strcmp(what, "text") || !strcmp(what, "part")) && code;
	}
	fclose(maps);
	for (int i = 0; i < count; i++)
		move((char *)list[i].start, list[i].end - list[i].start, list[i].prot, where);
	printf("%p\n", (void *)&my_wait_event_info);
	fflush(stdout);
	pause();
	return 0;
}
#endif
