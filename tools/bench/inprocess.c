//go:build ignore

/*
 * inprocess.c: a function of the server that takes another process's backtrace inside the calling backend, with
 * libunwind over ptrace, as C extensions do: it attaches, unwinds and names while the target is stopped. The
 * benchmark compares its round trip from SQL with ours. It checks no permission and must not be installed anywhere
 * else.
 *
 *     cc -O2 -Wall -Wextra -shared -fPIC -I$(pg_config --includedir-server) -o inprocess.so inprocess.c \
 *         -lunwind-ptrace -lunwind-generic -lunwind
 */
#define _GNU_SOURCE
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"

#include <libunwind-ptrace.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define MAX_FRAMES 256
#define MAX_WAIT_US 3000000

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(bench_backtrace);

/* One line for each frame of the stopped process. */
static void
unwind_into(StringInfo text, pid_t pid)
{
	unw_addr_space_t space = unw_create_addr_space(&_UPT_accessors, 0);
	void	   *upt = _UPT_create(pid);
	unw_cursor_t cursor;
	int			level = 0;

	if (space != NULL && upt != NULL && unw_init_remote(&cursor, space, upt) == 0)
	{
		do
		{
			unw_word_t	ip = 0;
			unw_word_t	offset = 0;
			char		name[512];

			unw_get_reg(&cursor, UNW_REG_IP, &ip);
			if (unw_get_proc_name(&cursor, name, sizeof(name), &offset) < 0)
				strcpy(name, "??");
			appendStringInfo(text, "#%-2d 0x%016lx in %s+0x%lx\n", level, (unsigned long) ip, name,
							 (unsigned long) offset);
		} while (++level < MAX_FRAMES && unw_step(&cursor) > 0);
	}
	if (upt != NULL)
		_UPT_destroy(upt);
	if (space != NULL)
		unw_destroy_addr_space(space);
}

Datum
bench_backtrace(PG_FUNCTION_ARGS)
{
	pid_t		pid = PG_GETARG_INT32(0);
	StringInfoData text;
	int			status = 0;
	pid_t		stopped = 0;

	initStringInfo(&text);
	if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0)
		elog(ERROR, "PTRACE_SEIZE of process %d: %m", (int) pid);
	if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0)
		for (int waited = 0; stopped == 0 && waited < MAX_WAIT_US; waited += 100)
		{
			stopped = waitpid(pid, &status, WNOHANG | __WALL);
			if (stopped == 0)
				pg_usleep(100);
		}
	if (stopped == pid && WIFSTOPPED(status))
		unwind_into(&text, pid);
	ptrace(PTRACE_DETACH, pid, NULL, NULL);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(text.data, text.len));
}
