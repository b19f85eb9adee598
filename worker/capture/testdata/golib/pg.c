// The functions go_wait() and go_spin() of PostgreSQL, where PGVERSION is set.
#ifdef PGVERSION
#include <stdint.h>

extern int goWait(int), goSpin(int);
extern volatile int InterruptPending;

struct values {
#if PGVERSION < 18
	int len;
#endif
	int version, args, keys, name, float8;
#if PGVERSION > 14
	char extra[32];
#endif
};

const void *Pg_magic_func(void)
{
#if PGVERSION < 18
	static const struct values magic = {
		sizeof magic, 100 * PGVERSION, 100, 32, 64, 1,
#if PGVERSION > 14
		"PostgreSQL"
#endif
	};
#else
	static const struct {
		int len;
		struct values values;
		const char *name, *version;
	} magic = {sizeof magic, {100 * PGVERSION, 100, 32, 64, 1, "PostgreSQL"}, 0, 0};
#endif
	return &magic;
}

const void *pg_finfo_go_wait(void)
{
	static const struct { int api; } info = {1};
	return &info;
}

const void *pg_finfo_go_spin(void) { return pg_finfo_go_wait(); }

uintptr_t go_spin(void *call)
{
	uintptr_t n = 0;
	(void) call;
	while (!InterruptPending)
		n += (uintptr_t) goSpin(3);
	return n;
}

uintptr_t go_wait(void *call)
{
	(void) call;
	return (uintptr_t) goWait(3);
}
#endif
