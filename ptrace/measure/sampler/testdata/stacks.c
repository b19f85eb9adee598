/*
 * stacks.c: sleeps with its stack pointer in memory of one kind, or at an address, which it is called with. Its output
 * is the stack pointer, and where that memory ends.
 */
#define _GNU_SOURCE
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { unsupported = 77, huge = 2 << 20, length = 4 * huge, below = 20000 };

static char *
mapsome(size_t size, int protection, int flags, int fd)
{
	char *p = mmap(NULL, size, protection, flags, fd, 0);

	if (p == MAP_FAILED)
		err(unsupported, "mmap");
	return p;
}

static char *
map(int protection, int flags, int fd)
{
	return mapsome(length, protection, flags, fd);
}

static int
sized(int fd)
{
	if (fd < 0 || ftruncate(fd, length) != 0)
		err(unsupported, "a file");
	return fd;
}

static char *
fill(char *p)
{
	uint64_t x = (uint64_t) getpid();

	for (size_t i = 0; i < length; i += 8)
	{
		x = x * 6364136223846793005u + 1442695040888963407u;
		memcpy(p + i, &x, 8);
	}
	return p;
}

int
main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS, writable = PROT_READ | PROT_WRITE;
	char *p, *last;
	unsigned long sp, end;

	if (strcmp(kind, "anonymous") == 0)
		p = fill(map(writable, anonymous, -1));
	else if (strcmp(kind, "huge") == 0)
	{
		p = map(writable, anonymous, -1);
		if (madvise(p, length, MADV_HUGEPAGE) != 0)
			err(unsupported, "madvise");
		fill(p);
	}
	else if (strcmp(kind, "hugetlb") == 0)
		p = fill(map(writable, anonymous | MAP_HUGETLB, -1));
	else if (strcmp(kind, "gigantic") == 0)
		p = fill(mapsome(1 << 30, writable, anonymous | MAP_HUGETLB | 30 << MAP_HUGE_SHIFT, -1));
	else if (strcmp(kind, "shared") == 0)
		p = fill(map(writable, MAP_SHARED | MAP_ANONYMOUS, -1));
	else if (strcmp(kind, "file") == 0)
		p = fill(map(writable, MAP_SHARED, sized(fileno(tmpfile()))));
	else if (strcmp(kind, "secret") == 0)
		p = fill(map(writable, MAP_SHARED, sized((int) syscall(447, 0)))); /* memfd_secret(2) */
	else if (strcmp(kind, "zero") == 0)
	{
		volatile char *q = p = map(PROT_READ, anonymous, -1);

		for (size_t i = 0; i < length; i += 4096)
			(void) q[i];
	}
	else if (strcmp(kind, "untouched") == 0)
		p = map(writable, anonymous, -1);
	else if (strcmp(kind, "forbidden") == 0)
	{
		p = fill(map(writable, anonymous, -1));
		mprotect(p, length, PROT_NONE);
	}
	else if (strcmp(kind, "hole") == 0)
	{
		p = fill(map(writable, anonymous, -1));
		last = (char *) (((uintptr_t) p + 2 * huge) & -(uintptr_t) huge);
		munmap(last, 4096);
	}
	else
		p = NULL;
	if (p == NULL)
	{
		sp = strtoul(kind, NULL, 0);
		end = sp + 2 * below;
	}
	else /* around the begin of what could be a huge page */
	{
		end = (((uintptr_t) p + 2 * huge) & -(uintptr_t) huge) + below;
		sp = end - 2 * below;
	}
	printf("%lu %lu\n", sp, end);
	fflush(stdout);
	__asm__ volatile (
		"mov %0, %%rsp\n"
		"1: mov $34, %%eax\n" /* pause(2) */
		"syscall\n"
		"jmp 1b\n"
		: : "r"(sp) : "rax", "rcx", "r11", "memory");
	return 0;
}
