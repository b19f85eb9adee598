/*
 * Loaded into a server with LD_PRELOAD. A session that sleeps for one or two milliseconds (pg_sleep(0.001)) waits for an LWLock
 * instead, as far as its wait event says: each time for another one of 600 tranches of extensions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/epoll.h>

enum { LWLOCK = 0x01000000, FIRST = 1000, TRANCHES = 600 };

int epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
	static int (*next)(int, struct epoll_event *, int, int);
	static uint32_t **event;
	static uint32_t number;

	if (!next) {
		next = dlsym(RTLD_NEXT, "epoll_wait");
		event = dlsym(RTLD_DEFAULT, "my_wait_event_info");
	}
	if (timeout > 0 && timeout <= 2 && event)
		**event = LWLOCK | (FIRST + number++ % TRANCHES);
	return next(set, events, most, timeout);
}
