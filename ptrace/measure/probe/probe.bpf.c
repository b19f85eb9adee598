// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
//go:build ignore

/* Counts how often processes pass an instruction, and copies their registers and stacks there.
 *
 * User space puts breakpoints (uprobe_multi) on instructions of files. Each has a number, its cookie: the index of its
 * element in the array probes. At a hit the kernel runs passed, in the process that has hit it. It counts every hit per
 * probe and process in processes. For a part of the hits it copies registers and stack into a ring.
 *
 * Every hit that meets the probe's conditions is one of three: a stack in the ring, lost because the ring was full, or
 * skipped because the budget was used up. So hits = stacks + lost + skipped, exactly.
 *
 * The program does not walk the stack. User space does, with call frame information.
 *
 * These instructions may be used under the MIT License. */
#include "buckets.h"
#include "memory.h"
#include "server.h"

char LICENSE[] SEC("license") = "GPL";

enum {
#if defined(__TARGET_ARCH_x86)
	REGISTERS = 21,         /* words of struct pt_regs */
	REGISTER_SP = 19,
	REGISTER_G = 1,         /* r14: Go's current goroutine */
#elif defined(__TARGET_ARCH_arm64)
	REGISTERS = 34,         /* words of struct user_pt_regs */
	REGISTER_SP = 31,
	REGISTER_G = 28,
#endif
	MAX_ARGUMENTS = 8,
	MAX_CONDITIONS = 4,
	MAX_STRINGS = 4,
	STRING = 64,            /* bytes, with the null byte */
	BUCKETS = 40,
	UNKNOWN_STACK = 131072, /* bytes that are copied at most, if the end of the stack is not known */
	MAX_THREAD = 64 << 20,  /* bytes between the stack pointer and the end of a thread's stack, which is at its top */
	TIMED = 64,             /* one hit in so many is timed */
};

enum { KIND_REGISTER, KIND_MEMORY, KIND_CONSTANT };

/* Where the value of an argument is. */
struct argument {
	u32 kind;
	u32 reg;                /* index of a register, or of the base register */
	s64 offset;             /* from the base register; or the constant */
	u32 size;               /* bytes: 1, 2, 4 or 8 */
	u32 is_signed;
	u32 is_string;          /* the value is the address of a string */
	u32 length;             /* of a string: index of the argument that has its length, plus 1; 0: a null byte ends it */
};

enum { OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_AND };

struct condition {
	struct argument what;
	u32 op;
	u32 is_signed;          /* of the comparison */
	u64 value;
};

enum {
	WANTS_STACK = 1,
	WANTS_ARGUMENTS = 2,
	IS_GO = 4,              /* the stack may be a goroutine's */
};

/* A probe. User space writes it before it attaches. */
struct probe {
	u32 flags;
	u32 num_arguments;
	u32 num_conditions;
	u32 unused;
	struct argument arguments[MAX_ARGUMENTS];
	struct condition conditions[MAX_CONDITIONS];
};

/* Durations from the entry of a function to its return, in ns. Bucket b is for 2^b to 2^(b+1)-1. */
struct latency {
	u64 returns, total, longest;
	u64 buckets[BUCKETS];
};

struct figures_key {
	u64 started;            /* when the process started, in ns since boot */
	u32 probe;
	u32 pid;
};

/* Figures of a probe in one process. */
struct figures {
	u64 hits;               /* that met the conditions */
	u64 stacks;             /* handed to user space */
	u64 lost;               /* the ring was full */
	u64 skipped;            /* not in the sample */
	u64 failed;             /* hits that did not meet the conditions */
	u64 timed;              /* an estimate of the time in the program, in ns */
};

/* What user space changes while the probes are attached. */
struct control {
	s64 stacks;             /* how many stacks may still be copied */
	u32 every;              /* one hit in so many, by chance, gets a stack */
	u32 unused;
};

/* A length that is not known: the stack may go on behind the copy. */
#define UNKNOWN (~0ULL)

/* A hit. The stack follows. */
struct hit {
	u64 at;                 /* CLOCK_MONOTONIC, ns */
	u64 started;
	u32 pid, tid;
	u32 probe, uid;
	u64 registers[REGISTERS];
	u64 thread_pointer;
	u64 stack_start;        /* address of the first byte of the copy */
	u64 stack_length;       /* bytes copied */
	u64 stack_wanted;       /* bytes from stack_start to the end of the stack; UNKNOWN */
	u64 arguments[MAX_ARGUMENTS];
	char strings[MAX_STRINGS][STRING];
	u32 unreadable;         /* arguments that could not be read, a bit for each */
	u32 num_strings;
};

/* Without variables of the types the compiler does not describe them, and bpf2go makes no Go types of them. */
const struct hit *hit_type __attribute__((unused));

/* User space sets the numbers of entries of the maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct probe);
} probes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct latency);
} latencies SEC(".maps");

/* Element (0, probe, 0) is for processes for which there is no room. User space makes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct figures_key);
	__type(value, struct figures);
} processes SEC(".maps");

/* Hits in processes of other servers, which the breakpoint costs time, too. Element (0, probe, 0) is for those
 * without room. User space makes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct figures_key);
	__type(value, u64);
} others SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct control);
} controls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} hits SEC(".maps");

static __always_inline void add(u64 *counter, u64 n) { __sync_fetch_and_add(counter, n); }

static __always_inline struct figures *figures_of(struct task_struct *task, u32 probe)
{
	struct figures_key k = {.started = task->group_leader->start_boottime, .probe = probe, .pid = task->tgid};
	struct figures_key rest = {.probe = probe};
	struct figures *f = bpf_map_lookup_elem(&processes, &k), none = {};

	if (f)
		return f;
	bpf_map_update_elem(&processes, &k, &none, BPF_NOEXIST);
	f = bpf_map_lookup_elem(&processes, &k);
	return f ? f : bpf_map_lookup_elem(&processes, &rest);
}

static __noinline int count_other(u32 probe)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct figures_key k = {.started = task->group_leader->start_boottime, .probe = probe, .pid = task->tgid};
	struct figures_key rest = {.probe = probe};
	u64 *n = bpf_map_lookup_elem(&others, &k), none = 0;

	if (!n) {
		bpf_map_update_elem(&others, &k, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&others, &k);
	}
	if (!n)
		n = bpf_map_lookup_elem(&others, &rest);
	if (n)
		add(n, 1);
	return 0;
}

static __always_inline void copy_registers(u64 *into, void *ctx)
{
	volatile u64 *words = ctx;

#pragma clang loop unroll(full)
	for (int i = 0; i < REGISTERS; i++)
		into[i] = words[i];
}

/* value reads an argument. It returns false if the value lies in memory that cannot be read. */
static __always_inline bool value(const struct argument *a, const u64 *registers, u64 *out)
{
	u64 v = a->offset;
	u32 reg = a->reg;

	if (a->kind != KIND_CONSTANT) {
		if (reg >= REGISTERS)
			return false;
		v = registers[reg];
	}
	if (a->kind == KIND_MEMORY) {
		u64 address = v + a->offset;

		v = 0;
		if (bpf_probe_read_user(&v, sizeof(v), (void *)address)) {
			/* A small value may be the last one of a page. */
			u32 size = a->size & 7;

			if (size == 0 || bpf_probe_read_user(&v, size, (void *)address))
				return false;
		}
	}
	switch (a->size) {
	case 1:
		v = a->is_signed ? (u64)((s64)(v << 56) >> 56) : v & 0xff;
		break;
	case 2:
		v = a->is_signed ? (u64)((s64)(v << 48) >> 48) : v & 0xffff;
		break;
	case 4:
		v = a->is_signed ? (u64)((s64)(v << 32) >> 32) : v & 0xffffffff;
		break;
	}
	*out = v;
	return true;
}

static __always_inline bool compare(const struct condition *c, u64 v)
{
	u64 w = c->value;
	bool less = c->is_signed ? (s64)v < (s64)w : v < w;

	switch (c->op) {
	case OP_EQ:
		return v == w;
	case OP_NE:
		return v != w;
	case OP_LT:
		return less;
	case OP_LE:
		return less || v == w;
	case OP_GT:
		return !less && v != w;
	case OP_GE:
		return !less;
	}
	return (v & w) != 0;
}

/* meets reports whether a hit meets all conditions of its probe. */
static __noinline bool meets(const struct probe *p, void *ctx)
{
	u64 registers[REGISTERS];

	copy_registers(registers, ctx);
	for (u32 i = 0; i < MAX_CONDITIONS; i++) {
		u64 v;

		if (i >= p->num_conditions)
			break;
		if (!value(&p->conditions[i].what, registers, &v) || !compare(&p->conditions[i], v))
			return false;
	}
	return true;
}

/* in_sample reports whether the budget allows a stack of this hit. */
static __always_inline bool in_sample(void)
{
	u32 zero = 0;
	struct control *c = bpf_map_lookup_elem(&controls, &zero);
	u32 every;

	if (!c)
		return false;
	every = c->every;
	if (every > 1 && bpf_get_prandom_u32() % every)
		return false;
	return c->stacks > 0 && __sync_fetch_and_add(&c->stacks, -1) > 0;
}

/* stack_end returns the address of the first byte above the stack that sp points into, 0 if that is not known. */
static __always_inline u64 stack_end(struct task_struct *task, u32 flags, u64 sp, u64 g, u64 thread_pointer)
{
	u64 limits[2], end = task->mm->start_stack;

	if (flags & IS_GO) {
		/* Go 1.17 and later keep g in a register, all versions in a thread-local variable. */
		if (!bpf_probe_read_user(limits, sizeof(limits), (void *)g) && limits[0] < sp && sp <= limits[1])
			return limits[1];
		if (!bpf_probe_read_user(&g, sizeof(g), (void *)(thread_pointer - 8)) &&
		    !bpf_probe_read_user(limits, sizeof(limits), (void *)g) && limits[0] < sp && sp <= limits[1])
			return limits[1];
	}
	if (task->pid == task->tgid)
		return sp < end ? end : 0;
	/* The C libraries put a thread's own data, to which the thread pointer points, above the frames of its stack. */
	if (!(flags & IS_GO) && thread_pointer > sp && thread_pointer - sp < MAX_THREAD)
		return thread_pointer;
	return 0;
}

/* fill writes all of a hit but the stack. */
static __noinline int fill(struct hit *h, void *ctx, u32 probe)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct probe *p = bpf_map_lookup_elem(&probes, &probe);
	u64 id = bpf_get_current_pid_tgid();

	if (!h || !p)
		return 0;
	h->at = bpf_ktime_get_ns();
	h->started = task->group_leader->start_boottime;
	h->pid = id >> 32;
	h->tid = id;
	h->probe = probe;
	h->uid = bpf_get_current_uid_gid();
	copy_registers(h->registers, ctx);
#if defined(__TARGET_ARCH_x86)
	h->thread_pointer = task->thread.fsbase;
#else
	h->thread_pointer = 0;
#endif
	h->unreadable = 0;
	h->num_strings = 0;
	if (!(p->flags & WANTS_ARGUMENTS))
		return 0;
	for (u32 i = 0; i < MAX_ARGUMENTS; i++) {
		u64 v = 0;

		if (i >= p->num_arguments)
			break;
		if (!value(&p->arguments[i], h->registers, &v))
			h->unreadable |= 1 << i;
		h->arguments[i] = v;
	}
	for (u32 i = 0; i < MAX_ARGUMENTS; i++) {
		u32 n = h->num_strings, length = p->arguments[i].length;
		char *into;
		u64 room = STRING - 1;

		if (i >= p->num_arguments || n >= MAX_STRINGS)
			break;
		if (!p->arguments[i].is_string || h->unreadable & 1 << i)
			continue;
		into = h->strings[n];
		into[0] = 0;
		if (length > 0 && length <= MAX_ARGUMENTS) {
			u64 all = h->arguments[length - 1];

			if (all < room)
				room = all;
			room &= STRING - 1;
			if (room && bpf_probe_read_user(into, room, (void *)h->arguments[i])) {
				h->unreadable |= 1 << i;
				continue;
			}
			into[room] = 0;
		} else if (bpf_probe_read_user_str(into, STRING, (void *)h->arguments[i]) < 0) {
			h->unreadable |= 1 << i;
			continue;
		}
		h->num_strings = n + 1; /* strings that cannot be read take no room */
	}
	return 0;
}

/* The verifier checks a function that is not inlined once for all calls. */
static __noinline u64 first_present_page(u64 sp) { return first_present(sp, NULL); }

/*
 * readable returns how many bytes from sp on can be read, pages that a frame has not touched yet included. It returns
 * UNKNOWN if they are more than UNKNOWN_STACK. Above a thread's stack there usually is a page that cannot be read.
 */
static __noinline u64 readable(u64 sp)
{
	u64 start = first_present_page(sp), at = start;
	char byte;

	for (u32 i = 0; i <= UNKNOWN_STACK / PAGE; i++) {
		if (bpf_probe_read_user(&byte, sizeof(byte), (void *)at))
			return at == start ? 0 : at - sp;
		at = (at | (PAGE - 1)) + 1;
	}
	return UNKNOWN;
}

/* STACK makes a function that copies registers and a stack of up to SIZE bytes into the ring. */
#define STACK(SIZE)                                                                                                   \
	struct hit_##SIZE {                                                                                           \
		struct hit hit;                                                                                       \
		u8 stack[SIZE];                                                                                       \
	};                                                                                                            \
	static __noinline int copy_##SIZE(void *ctx, u32 probe, u64 sp, u64 length)                                   \
	{                                                                                                             \
		struct hit_##SIZE *h = bpf_ringbuf_reserve(&hits, sizeof(*h), 0);                                     \
		u64 done = length, all = length, start = sp;                                                          \
                                                                                                                      \
		if (!h)                                                                                               \
			return 0;                                                                                     \
		fill(&h->hit, ctx, probe);                                                                            \
		if (done > SIZE)                                                                                      \
			done = SIZE;                                                                                  \
		if (done > 0 && bpf_probe_read_user(h->stack, done, (void *)sp)) {                                    \
			/* Some page of it is not in memory. */                                                       \
			start = first_present_page(sp);                                                                   \
			if (length != UNKNOWN)                                                                        \
				all = start - sp < length ? length - (start - sp) : 0;                                \
			done = all;                                                                                   \
			if (done > SIZE)                                                                              \
				done = SIZE;                                                                          \
			if (done > 0 && bpf_probe_read_user(h->stack, done, (void *)start)) {                         \
				done = 0;                                                                             \
				for (u64 at = 0; at + 1024 <= SIZE && at + 1024 <= all; at += 1024) {                 \
					if (bpf_probe_read_user(h->stack + at, 1024, (void *)(start + at)))           \
						break;                                                                \
					done = at + 1024;                                                             \
				}                                                                                     \
			}                                                                                             \
		}                                                                                                     \
		h->hit.stack_start = start;                                                                           \
		h->hit.stack_length = done;                                                                           \
		h->hit.stack_wanted = all;                                                                            \
		bpf_ringbuf_submit(h, BPF_RB_NO_WAKEUP);                                                              \
		return 1;                                                                                             \
	}

STACK(2048)
STACK(6144)
STACK(16384)
STACK(40960)
STACK(131072)
STACK(262144)

/* copy copies a hit into the ring. It returns whether there was room. */
static __always_inline bool copy(void *ctx, struct task_struct *task, u32 probe, u32 flags)
{
	volatile u64 *words = ctx;
	u64 sp = words[REGISTER_SP], thread_pointer = 0, end, length = 0;

	if (flags & WANTS_STACK) {
#if defined(__TARGET_ARCH_x86)
		thread_pointer = task->thread.fsbase;
#endif
		end = stack_end(task, flags, sp, words[REGISTER_G], thread_pointer);
		length = end ? end - sp : readable(sp);
	}
	if (length == UNKNOWN)
		return copy_131072(ctx, probe, sp, length);
	if (length <= 2048)
		return copy_2048(ctx, probe, sp, length);
	if (length <= 6144)
		return copy_6144(ctx, probe, sp, length);
	if (length <= 16384)
		return copy_16384(ctx, probe, sp, length);
	if (length <= 40960)
		return copy_40960(ctx, probe, sp, length);
	if (length <= 131072)
		return copy_131072(ctx, probe, sp, length);
	return copy_262144(ctx, probe, sp, length);
}

/* wanted reports whether hits of a thread are counted. Without a postmaster the kernel has chosen the process. */
static __always_inline bool wanted(struct task_struct *task)
{
	if (!postmaster || task->tgid == (pid_t)postmaster)
		return true;
	return task->real_parent->tgid == (pid_t)postmaster && same_rights(task, task->real_parent);
}

/* handle counts a hit. It returns whether the hit met the conditions. */
static __always_inline bool handle(void *ctx, u32 probe)
{
	u64 began = bpf_ktime_get_ns();
	struct task_struct *task = bpf_get_current_task_btf();
	struct probe *p = bpf_map_lookup_elem(&probes, &probe);
	struct figures *f;

	if (!p)
		return false;
	if (!wanted(task)) {
		count_other(probe);
		return false;
	}
	f = figures_of(task, probe);
	if (!f)
		return false;
	if (p->num_conditions && !meets(p, ctx)) {
		add(&f->failed, 1);
		return false;
	}
	add(&f->hits, 1);
	if (p->flags & (WANTS_STACK | WANTS_ARGUMENTS)) {
		if (!in_sample())
			add(&f->skipped, 1);
		else if (copy(ctx, task, probe, p->flags))
			add(&f->stacks, 1);
		else
			add(&f->lost, 1);
	}
	if ((bpf_get_prandom_u32() & (TIMED - 1)) == 0)
		add(&f->timed, (bpf_ktime_get_ns() - began) * TIMED);
	return true;
}

SEC("uprobe.multi")
int passed(void *ctx)
{
	handle(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

/* called runs at the entry of a function and, if it returned 0 there, at its return. */
SEC("uprobe.session")
int called(void *ctx)
{
	u32 probe = bpf_get_attach_cookie(ctx);
	u64 *since = bpf_session_cookie(), took;
	struct latency *l;
	u32 b;

	if (!bpf_session_is_return()) {
		if (!handle(ctx, probe))
			return 1;
		*since = bpf_ktime_get_ns();
		return 0;
	}
	took = bpf_ktime_get_ns() - *since;
	l = bpf_map_lookup_elem(&latencies, &probe);
	if (!l)
		return 0;
	add(&l->returns, 1);
	add(&l->total, took);
	if (took > l->longest)
		l->longest = took; /* another processor may write at the same time: the next one corrects it */
	b = bucket(took, BUCKETS - 1);
	if (b < BUCKETS)
		add(&l->buckets[b], 1);
	return 0;
}
