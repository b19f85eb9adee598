// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* Ranges of a histogram. */
#ifndef PGSB_BUCKETS_H
#define PGSB_BUCKETS_H

#include "helpers.h"

/* bucket returns the number of the range of a value, at most last: 0 for 0 and 1, and otherwise the place of the highest
 * bit. */
static __always_inline u32 bucket(u64 value, u32 last)
{
	u32 b = 0;

	if (value >> last)
		return last;
	if (last > 32 && value >> 32) {
		value >>= 32;
		b += 32;
	}
	if (value >> 16) {
		value >>= 16;
		b += 16;
	}
	if (value >> 8) {
		value >>= 8;
		b += 8;
	}
	if (value >> 4) {
		value >>= 4;
		b += 4;
	}
	if (value >> 2) {
		value >>= 2;
		b += 2;
	}
	if (value >> 1)
		b += 1;
	return b;
}

#endif
