// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* The kernel's types that the programs (*.bpf.c) use, each with only the fields that they read. The loader
 * relocates every access by the running kernel's own description (CO-RE), so order and offsets here mean nothing.
 * Add a type or a field when a program needs it. */
#ifndef PGSB_VMLINUX_H
#define PGSB_VMLINUX_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;
typedef int pid_t;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

/* Numbers of the kernel's interface to user space, which do not change. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};

enum {
	BPF_F_MMAPABLE = 1 << 10,
};

enum {
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
};

enum {
	BPF_F_TIMER_CPU_PIN = 2,
};

enum {
	ENOENT = 2,
	EBUSY = 16,
};

enum {
	CLOCK_MONOTONIC = 1,
};

enum {
	TASK_DEAD = 0x80, /* of __state in struct task_struct */
	PF_EXITING = 4,   /* of flags in struct task_struct */
};

struct bpf_timer {
	u64 __opaque[2];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info {
	u32 cpu;
};

struct sched_entity {
	u64 sum_exec_runtime;
	u64 prev_sum_exec_runtime;
};

/* Empty in a kernel without CONFIG_SCHED_INFO. Times are ns of the scheduler's own clock. */
struct sched_info {
	u64 run_delay;    /* how long the task has waited for processors, until it last got one */
	u64 last_arrival; /* when it last got a processor */
	u64 last_queued;  /* since when it waits for one; 0: it does not wait */
};

struct mm_struct {
	unsigned long start_stack;
	unsigned long exec_vm; /* pages of mappings with code */
};


#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#endif

struct user_namespace;

typedef struct {
	unsigned int val;
} kuid_t;

typedef struct {
	unsigned int val;
} kgid_t;

typedef struct {
	u64 val; /* before Linux 6.3 two numbers */
} kernel_cap_t;

struct cred {
	kuid_t uid, suid, euid, fsuid;
	kgid_t gid, sgid, egid, fsgid;
	kernel_cap_t cap_permitted;
	struct user_namespace *user_ns;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	unsigned long nvcsw;
	unsigned long nivcsw;
	u64 start_time;
	u64 start_boottime;
	struct mm_struct *mm;
	struct sched_entity se;
	struct sched_info sched_info;
	pid_t pid;
	pid_t tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	const struct cred *real_cred;
#if defined(__TARGET_ARCH_x86)
	struct thread_struct thread;
#endif
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, sp;
};

enum {
	SYS_RT_SIGRETURN = 15,
};
#endif

#pragma clang attribute pop

#endif
