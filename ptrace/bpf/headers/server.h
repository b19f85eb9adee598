// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* Which processes belong to the server: the postmaster's children with its rights. */
#ifndef PGSB_SERVER_H
#define PGSB_SERVER_H

#include "helpers.h"

/* The process id of the postmaster. User space sets it before the programs are loaded. */
const volatile u32 postmaster = 0;

/* same_rights reports whether two processes have the same ids and permitted capabilities, so that a tracer which may see
 * the one may see the other. A child of a server can execute a setuid or setgid program, or one with file capabilities,
 * which the server's user must not see. */
static __always_inline bool same_rights(struct task_struct *x, struct task_struct *y)
{
	const struct cred *a = x->real_cred, *b = y->real_cred;
	u64 permitted_a = 0, permitted_b = 1;

	if (a->uid.val != b->uid.val || a->euid.val != b->euid.val || a->suid.val != b->suid.val ||
	    a->fsuid.val != b->fsuid.val || a->gid.val != b->gid.val || a->egid.val != b->egid.val ||
	    a->sgid.val != b->sgid.val || a->fsgid.val != b->fsgid.val || a->user_ns != b->user_ns)
		return false;
	bpf_probe_read_kernel(&permitted_a, sizeof(permitted_a), &a->cap_permitted);
	bpf_probe_read_kernel(&permitted_b, sizeof(permitted_b), &b->cap_permitted);
	return permitted_a == permitted_b;
}

/* is_child reports whether a thread is the main thread of a child of the postmaster. */
static __always_inline bool is_child(struct task_struct *t)
{
	return t->real_parent->tgid == (pid_t)postmaster && t->pid == t->tgid;
}

/* is_server_process reports whether a thread is the main thread of a server process. Threads of an extension are not. */
static __always_inline bool is_server_process(struct task_struct *t)
{
	return is_child(t) && same_rights(t, t->real_parent);
}

#endif
