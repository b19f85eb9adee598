// The function go_wait() of PostgreSQL, where PGVERSION is set.
#ifdef PGVERSION
#include <stdint.h>

extern int goWait(int);

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

uintptr_t go_wait(void *call)
{
	(void) call;
	return (uintptr_t) goWait(3);
}
#endif
