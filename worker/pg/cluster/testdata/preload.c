/* Moves the code of the program postgres to anonymous memory at the same addresses, as libraries for huge pages do. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

extern char *program_invocation_short_name;

__attribute__((constructor)) static void move(void)
{
	unsigned long start, end;
	char line[512], perms[8];
	FILE *maps;
	if (strcmp(program_invocation_short_name, "postgres") || !(maps = fopen("/proc/self/maps", "r")))
		return;
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) != 3 || strcmp(perms, "r-xp") || !strstr(line, "/postgres\n"))
			continue;
		char *new = mmap(0, end - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memcpy(new, (void *)start, end - start);
		mprotect(new, end - start, PROT_READ | PROT_EXEC);
		mremap(new, end - start, end - start, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start);
		break;
	}
	fclose(maps);
}
