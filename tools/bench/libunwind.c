//go:build ignore

/*
 * libunwind.c: a backtrace as the C extension of this project's name takes it. libunwind reads the stopped target
 * word by word over ptrace, and names every frame, all between INTERRUPT and DETACH. Prints the spans of tracer.h,
 * and the depth of the last stack, as JSON. Its speed must equal that extension's: each capture uses a new address
 * space, as there. One exception is in its favour: the extension polls for the stop with sleeps of 0.1 ms and more,
 * this program waits for it.
 *
 *     cc -O2 -Wall -Wextra -o libunwind libunwind.c -lunwind-ptrace -lunwind-generic -lunwind
 */
#define _GNU_SOURCE
#include "tracer.h"

#include <libunwind-ptrace.h>

#define MAX_FRAMES 256
#define MAX_TEXT (64 * 1024)

static char text[MAX_TEXT];

/* Append one line to the text, as pstack would print it; returns the new length. */
static size_t
append_frame(unw_cursor_t *cursor, int level, size_t length)
{
	unw_word_t	ip;
	unw_word_t	offset = 0;
	char		name[512];
	int			n;

	if (unw_get_reg(cursor, UNW_REG_IP, &ip) < 0)
		return length;
	if (unw_get_proc_name(cursor, name, sizeof(name), &offset) < 0)
		strcpy(name, "??");
	n = snprintf(text + length, sizeof(text) - length, "#%-2d 0x%016lx in %s+0x%lx\n", level,
				 (unsigned long) ip, name, (unsigned long) offset);
	return length + (size_t) n < sizeof(text) ? length + (size_t) n : sizeof(text) - 1;
}

/* The whole stack of the stopped target into text; returns its depth. */
static int
unwind_target(pid_t pid)
{
	unw_addr_space_t space = unw_create_addr_space(&_UPT_accessors, 0);
	void	   *upt = _UPT_create(pid);
	unw_cursor_t cursor;
	size_t		length = 0;
	int			depth = 0;

	if (space != NULL && upt != NULL && unw_init_remote(&cursor, space, upt) == 0)
	{
		do
			length = append_frame(&cursor, depth, length);
		while (++depth < MAX_FRAMES && unw_step(&cursor) > 0);
	}
	if (upt != NULL)
		_UPT_destroy(upt);
	if (space != NULL)
		unw_destroy_addr_space(space);
	return depth;
}

int
main(int argc, char **argv)
{
	struct bench b = bench_open(argc, argv);
	char		extra[32];
	int			depth = 0;

	while (b.done < b.repeat)
	{
		bench_stop(&b);
		depth = unwind_target(b.pid);
		bench_release(&b);
	}
	if (getenv("BENCH_PRINT_STACK") != NULL)
		fputs(text, stderr);
	snprintf(extra, sizeof(extra), ",\"depth\":%d", depth);
	bench_print(&b, extra);
	return depth > 0 ? 0 : 1;
}
