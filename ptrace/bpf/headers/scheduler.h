// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* What the scheduler knows of a thread. */
#ifndef PGSB_SCHEDULER_H
#define PGSB_SCHEDULER_H

#include "helpers.h"

/* count_switches returns how often a thread has left a processor. */
static __always_inline u64 count_switches(struct task_struct *t)
{
	return t->nvcsw + t->nivcsw;
}

/* off_processor reports whether a thread has no processor. on_cpu is a byte since Linux 7.2, and was an int before. */
static __always_inline bool off_processor(struct task_struct *t)
{
	if (field_size(t->on_cpu) == sizeof(u8))
		return *(volatile u8 *)&t->on_cpu == 0;
	return *(volatile u32 *)&t->on_cpu == 0;
}

/* last_run returns how long a thread that leaves its processor has had it, in ns. Not every kernel runs a program at each
 * switch. So a program may not have seen that the thread got the processor. */
static __always_inline u64 last_run(struct task_struct *t)
{
	return t->se.sum_exec_runtime - t->se.prev_sum_exec_runtime;
}

#endif
