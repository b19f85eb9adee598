//go:build ignore

/*
 * floor.c: the lowest possible cost of a stop-and-copy capture: SEIZE, INTERRUPT, wait, registers, stack, DETACH, in
 * C. Prints the spans of tracer.h and the size of the copy as JSON. It unwinds nothing.
 *
 * The top of the [stack] mapping is read once, before the first stop. The copy goes to allocated memory.
 *
 *     cc -O2 -Wall -Wextra -o floor floor.c && ./floor REPEAT INTERVAL_US PID
 */
#define _GNU_SOURCE
#include "tracer.h"

#include <elf.h>
#include <inttypes.h>
#include <sys/uio.h>
#include <sys/user.h>

#define MAX_STACK (1024 * 1024)
#define RED_ZONE 128

static char copy[MAX_STACK];

/* End of the target's [stack] mapping. */
static uint64_t
stack_top(pid_t pid)
{
	char		path[32];
	char		line[512];
	uint64_t	top = 0;
	FILE	   *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int) pid);
	maps = fopen(path, "r");
	if (maps == NULL)
		fail(path, pid);
	while (top == 0 && fgets(line, sizeof(line), maps) != NULL)
		if (strstr(line, "[stack]") != NULL && sscanf(line, "%*[^-]-%" SCNx64, &top) != 1)
			top = 0;
	fclose(maps);
	if (top == 0)
	{
		errno = ENOENT;
		fail("[stack] mapping", pid);
	}
	return top;
}

/* Copy registers and stack of the stopped target; returns the bytes of stack copied. */
static ssize_t
copy_target(pid_t pid, uint64_t top)
{
	struct user_regs_struct regs;
	struct iovec set = {&regs, sizeof(regs)};
	struct iovec local = {copy, 0};
	struct iovec remote = {NULL, 0};

	if (ptrace(PTRACE_GETREGSET, pid, (void *) NT_PRSTATUS, &set) < 0)
		fail("PTRACE_GETREGSET", pid);
	remote.iov_base = (void *) (uintptr_t) (regs.rsp - RED_ZONE);
	remote.iov_len = top - (regs.rsp - RED_ZONE);
	if (remote.iov_len > MAX_STACK)
		remote.iov_len = MAX_STACK;
	local.iov_len = remote.iov_len;
	return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

int
main(int argc, char **argv)
{
	struct bench b = bench_open(argc, argv);
	uint64_t	top = stack_top(b.pid);
	ssize_t		size = 0;
	char		extra[64];

	memset(copy, 1, sizeof(copy));
	while (b.done < b.repeat)
	{
		bench_stop(&b);
		size = copy_target(b.pid, top);
		bench_release(&b);
		if (size < 0)
			fail("process_vm_readv", b.pid);
	}
	snprintf(extra, sizeof(extra), ",\"stack_bytes\":%zd", size);
	bench_print(&b, extra);
	return 0;
}
