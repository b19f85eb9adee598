// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* Counters by processor, and the cost of the programs. Before it includes this file, a program declares with enum:
 *   RUNS, RUN_TIME, COUNTERS   the counters of runs and of their time in ns, and the number of all counters
 *   MEASURED_FIRST             how many runs on each processor are measured at the beginning
 *   MEASURED_EVERY             later one in so many, a power of two, is measured and stands for all of them */
#ifndef PGSB_COST_H
#define PGSB_COST_H

#include "helpers.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

static __always_inline u64 *counter(u32 which)
{
	return bpf_map_lookup_elem(&counters, &which);
}

static __always_inline void count(u32 which, u64 n)
{
	u64 *c = counter(which);

	if (c)
		*c += n;
}

/* charge counts a run that began at a moment of bpf_ktime_get_ns. */
static __always_inline void charge(u64 began)
{
	u64 *c = counter(RUNS);

	if (!c)
		return;
	*c += 1;
	if (MEASURED_FIRST > 0 && *c <= MEASURED_FIRST)
		count(RUN_TIME, bpf_ktime_get_ns() - began);
	else if ((*c & (MEASURED_EVERY - 1)) == 0)
		count(RUN_TIME, (bpf_ktime_get_ns() - began) * MEASURED_EVERY);
}

#endif
