/*
 * Loaded into a server's program with LD_PRELOAD: prints the type and the name of every wait event number, and ends it.
 * Extension and InjectionPoint events other than number 0 need shared memory, and so do lock tranches of extensions:
 * from 19 on the server looks for their names there, and faults.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

typedef const char *(*name_of)(unsigned event);

static sigjmp_buf no_memory;

static void fault(int number)
{
	siglongjmp(no_memory, number);
}

__attribute__((constructor)) static void print_all(void)
{
	name_of event = (name_of) dlsym(RTLD_DEFAULT, "pgstat_get_wait_event");
	name_of type = (name_of) dlsym(RTLD_DEFAULT, "pgstat_get_wait_event_type");

	if (event == NULL || type == NULL)
		return;
	signal(SIGSEGV, fault);
	for (unsigned class = 0x01; class <= 0x0a; class++)
	{
		unsigned last = class == 0x07 ? 0 : 299;
		const char *first = NULL;

		for (unsigned id = 0; class != 0x02 && id <= last; id++)
		{
			const char *name = sigsetjmp(no_memory, 1) == 0 ? event(class << 24 | id) : NULL;

			/* Before 19 the class 4 has one event, whose name every number has. */
			if (id == 0)
				first = name;
			else if (class == 0x04 && name == first)
				break;
			printf("%u\t%u\t%s\t%s\n", class, id, type(class << 24 | id), name != NULL ? name : "-");
		}
	}
	fflush(stdout);
	_exit(0);
}
