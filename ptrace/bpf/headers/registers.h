// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* The registers of a thread on x86_64. */
#ifndef PGSB_REGISTERS_H
#define PGSB_REGISTERS_H

#include "helpers.h"

enum {
	NUM_REGISTERS = 21, /* words of struct pt_regs */
	WORD_SP = 19,       /* the stack pointer */
};

/* copy_registers copies the registers with which a thread will continue in user mode, as far as an unwinder needs them.
 * It returns false if the thread is returning from a signal: the registers are partly those of before the signal then. */
static __always_inline bool copy_registers(u64 *into, struct task_struct *task)
{
	struct pt_regs *r = (struct pt_regs *)bpf_task_pt_regs(task);

	into[0] = r->r15;
	into[1] = r->r14;
	into[2] = r->r13;
	into[3] = r->r12;
	into[4] = r->bp;
	into[5] = r->bx;
	into[6] = r->r11;
	into[7] = r->r10;
	into[8] = r->r9;
	into[9] = r->r8;
	into[10] = r->ax;
	into[11] = r->cx;
	into[12] = r->dx;
	into[13] = r->si;
	into[14] = r->di;
	into[15] = r->orig_ax;
	into[16] = r->ip;
	into[WORD_SP] = r->sp;
	return r->orig_ax != SYS_RT_SIGRETURN;
}

#endif
