// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* Reads of a process's memory, and of its stack. */
#ifndef PGSB_MEMORY_H
#define PGSB_MEMORY_H

#include "helpers.h"

enum {
	PAGE = 4096,
	UNTOUCHED_PAGES = 80, /* of a frame, before its first page in memory */
};

/* fetch copies memory of the current process, or of a sleeper if that is not NULL. */
static __always_inline bool fetch(void *to, u32 size, u64 from, struct task_struct *sleeper)
{
	if (sleeper)
		return bpf_copy_from_user_task(to, size, (void *)from, sleeper, 0) == 0;
	return bpf_probe_read_user(to, size, (void *)from) == 0;
}

/* fetch_u64 returns 0 for memory that cannot be read, as fetch_u32 does. */
static __always_inline u64 fetch_u64(u64 from, struct task_struct *sleeper)
{
	u64 v = 0;

	fetch(&v, sizeof(v), from, sleeper);
	return v;
}

static __always_inline u32 fetch_u32(u64 from, struct task_struct *sleeper)
{
	u32 v = 0;

	fetch(&v, sizeof(v), from, sleeper);
	return v;
}

/* first_present returns the lowest address from start on whose page is in memory. A function may have made room for
 * variables and not have touched it yet. Such a part, of up to some hundred KiB, has nothing of use. */
static __always_inline u64 first_present(u64 start, struct task_struct *sleeper)
{
	char byte;

	for (u32 i = 0; i < UNTOUCHED_PAGES; i++) {
		if (fetch(&byte, sizeof(byte), start, sleeper))
			break;
		start = (start | (PAGE - 1)) + 1;
	}
	return start;
}

/* take_scratch returns an element of an array map that no other thread uses, NULL if all are in use. The element begins
 * with a u32. The caller sets it to 0 to give the element back. */
static __always_inline void *take_scratch(void *map, u32 elements, u32 first)
{
#pragma clang loop unroll(full)
	for (u32 i = 0; i < elements; i++) {
		u32 at = (first + i) % elements;
		u32 *busy = bpf_map_lookup_elem(map, &at);

		if (busy && __sync_val_compare_and_swap(busy, 0, 1) == 0)
			return busy;
	}
	return NULL;
}

#endif
