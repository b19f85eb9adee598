/*
 * A program that moves its code to memory without a file, as is done to have it on huge pages, and then blocks. With an
 * argument, a byte of a function that nobody calls is another one there.
 */
#define _GNU_SOURCE

#include "spot.h"

#include <link.h>
#include <string.h>
#include <sys/mman.h>

static volatile int argument = 3;

NOINLINE int
unused(int n)
{
	return n * argument;
}

/* The executable segment of the program itself, which comes first. */
static int
find(struct dl_phdr_info *info, size_t size, void *found)
{
	(void) size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X))
		{
			((size_t *) found)[0] = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			((size_t *) found)[1] = info->dlpi_phdr[i].p_memsz;
			return 1;
		}
	return 0;
}

static int
move(int patched)
{
	size_t		segment[2],
				page = (size_t) sysconf(_SC_PAGESIZE);

	if (dl_iterate_phdr(find, segment) == 0)
		return 0;

	size_t		start = segment[0] & ~(page - 1),
				size = (segment[0] + segment[1] - start + page - 1) & ~(page - 1);
	char	   *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED)
		return 0;
	memcpy(copy, (void *) start, size);
	if (patched)
		copy[(size_t) &unused - start] ^= 1;
	return mprotect(copy, size, PROT_READ | PROT_EXEC) == 0 &&
		mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *) start) != MAP_FAILED;
}

static NOINLINE int
inner(int n)
{
	char		text[100];

	memset(text, n, sizeof(text));
	__asm__ volatile("" :: "r"(text) : "memory");
	spot();
	STAY();
	return text[n];
}

static NOINLINE int
outer(int n)
{
	int			r = inner(n + argument);

	STAY();
	return r + argument;
}

int
main(int argc, char **argv)
{
	(void) argv;
	if (!move(argc > 1))
		return 1;

	int			r = outer(argument);

	STAY();
	return r;
}
