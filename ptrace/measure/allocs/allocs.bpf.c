// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
//go:build ignore

/*
 * allocs.bpf.c: accounts for the allocations of one process by call path.
 *
 * User space attaches `entered` to the entries of the allocator's functions, with the kind of the function as cookie,
 * and `returned` to their returns. Nothing is handed over event by event: the programs keep the live blocks and the sums
 * by call path in tables, so that a slow reader loses nothing. `exited` runs when any thread of the host ends.
 *
 * A call path has the number that hash_stack computes. It goes by all words of the stack on which an unwinder can
 * depend: pointers into code and into the stack, with their places. So two call paths never share a number, apart from
 * collisions of 64 bits, and one call path can have several numbers: user space merges them by name. The first time a
 * number occurs, registers and stack go to user space.
 *
 * A call from inside an allocation function (realloc calls malloc, malloc calls mmap) belongs to the outer call and is
 * not counted. Calls of mmap and munmap from the C library's own code are not counted either.
 *
 * These instructions may be used under the MIT License.
 */
#include "memory.h"

char LICENSE[] SEC("license") = "GPL";

#define REG(c, field) (*(volatile unsigned long *)&(c)->field)

enum {
	MAX_STACK = 128 << 10,	/* bytes of a stack that are copied */
	THREAD_STACK = 16 << 10, /* of a thread other than the main one, whose stack's end is not known */
	WORDS = 8,		/* of a stack that one step of hash_stack takes */
	MAX_RANGES = 128,
	NUM_SCRATCH = 8,
	MAX_RUN = 20000,	/* ns: a run that took longer was interrupted */
	MAX_INNER = 1000,	/* calls of allocation functions from inside one of them */
};

/* What a function does. */
enum kind {
	KIND_MALLOC = 1,	/* also valloc: (size) */
	KIND_CALLOC,		/* (count, size) */
	KIND_REALLOC,		/* (old, size) */
	KIND_MEMALIGN,		/* also aligned_alloc: (alignment, size) */
	KIND_POSIX_MEMALIGN,	/* (result, alignment, size) */
	KIND_MMAP,		/* (address, size, ...) */
	KIND_MREMAP,		/* (old, old size, size, ...) */
	KIND_FREE,		/* (old) */
	KIND_MUNMAP,		/* (old, size) */
	KINDS,
};

enum { SHARED = 1 }; /* of the flags of mmap: MAP_SHARED, also set in MAP_SHARED_VALIDATE */

const volatile u64 stack_end = 0;	/* of the main thread: address of the first byte above the frames */
const volatile u64 library_start = 0;	/* code of the C library: calls of mmap from there are its own */
const volatile u64 library_size = 0;
const volatile bool has_headers = false; /* the word before a block is glibc's: size and three flags */

/* A block or mapping that is in use. */
struct alloc_block {
	u64 size;
	u64 stack;	/* number of the call path */
};

/* Sums of a call path. */
struct alloc_sums {
	u64 objects, bytes;		/* allocated */
	u64 live_objects, live_bytes;	/* and not freed */
	u64 sent;			/* user space has its stack */
};

/* The call of an allocation function in which a thread is. */
struct alloc_call {
	u64 sp;		/* at its entry; 0: none */
	u64 size;
	u64 stack;
	u64 result;	/* posix_memalign: where it stores the address */
	u64 old, old_size, old_stack;
	u32 kind;
	u32 had_old;	/* old is a block that is known */
	u32 inner;	/* calls from inside this one */
	u32 unused;
};

struct alloc_registers {
	u64 ip, sp, bp, bx, r12, r13, r14, r15;
};

/* A stack, as user space gets it: the copy follows. */
struct alloc_stack {
	u64 number;
	u64 code_pages;	/* of the process, at that moment */
	struct alloc_registers registers;
	u32 tid;
	u32 length;	/* of the copy, from sp on */
	u32 cut;	/* the copy ends before the stack does */
	u32 unused;
};

struct alloc_range {
	u64 start, end;
};

/* Where code is, in address order, then ranges at the highest address. User space keeps it up to date. */
struct alloc_code {
	struct alloc_range ranges[MAX_RANGES];
	struct alloc_range libraries; /* from the second range to the end of the last one */
	u64 code_pages;	/* for which it is true */
};

/* Counts of the whole process. */
struct alloc_counters {
	u64 hits[KINDS];	/* calls */
	u64 failed;		/* allocations without a result */
	u64 nested;		/* calls from inside another one */
	u64 older, older_bytes;	/* freed blocks that are not of this time, and their sizes by glibc's headers */
	u64 unknown_maps, unknown_bytes; /* unmapped ranges that do not begin with a known mapping */
	u64 shared, shared_bytes;	/* shared mappings: the process does not own that memory */
	u64 untracked, untracked_bytes;	/* allocations for which the table of blocks had no room */
	u64 replaced, replaced_bytes;	/* blocks whose free was not seen: their address was allocated again */
	u64 lost_calls;		/* entries for which the table of calls had no room */
	u64 unmatched;		/* calls that did not return: the process has left them by a jump */
	u64 lost_stacks;	/* stacks for which the ring had no room */
	u64 no_stack;		/* allocations whose stack could not be read */
	u64 other_stacks;	/* allocations for whose call path the table had no room */
	u64 hashed;		/* stacks that were copied and hashed, and their words */
	u64 words;
	u64 runs, time;		/* of the programs; the time in ns is measured for one run in 16 */
};

struct scratch {
	u32 busy;
	u32 unused;
	struct alloc_stack head;
	u64 stack[MAX_STACK / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* user space sets it */
	__type(key, u64);
	__type(value, struct alloc_block);
} blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* user space sets it */
	__type(key, u64);
	__type(value, struct alloc_sums);
} sums SEC(".maps");

/* An element of a thread is made at its first allocation, and deleted when the thread ends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct alloc_call);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct alloc_code);
} code SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NUM_SCRATCH);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Not 0 while calls are to be counted: from when all functions are probed until the first one is not any more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} active SEC(".maps");

/* One element that all threads of the process add to. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct alloc_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} stacks SEC(".maps");

/* Without variables of these types the compiler does not describe them. */
const struct alloc_stack *stack_type __attribute__((unused));
const enum kind *kind_type __attribute__((unused));

#define ADD(place, n) __sync_fetch_and_add(&(place), (n))

/* all_counters returns the counters; NULL if nothing is to be counted now. */
static __always_inline struct alloc_counters *all_counters(void)
{
	u32 zero = 0, *on = bpf_map_lookup_elem(&active, &zero);

	return on && *on ? bpf_map_lookup_elem(&counters, &zero) : NULL;
}

/* What hash_words needs. */
struct walk {
	struct scratch *s;
	u64 hash;
	u64 sp, size;	/* of the stack */
	u64 program, program_size;	/* the first range of code */
	u64 libraries, libraries_size;	/* from the second one to the last one */
	u32 words;
	bool all;	/* where code is is not known: take every word that can be a pointer */
};

static __always_inline u64 mix(u64 h, u64 v)
{
	h ^= v;
	h *= 0x9e3779b97f4a7c15ULL;
	return h ^ h >> 29;
}

/* in_code reports whether a word is the address of code. It is not static: the verifier then checks it once. */
__noinline int in_code(u64 word)
{
	u32 zero = 0, at = 0;
	struct alloc_code *c = bpf_map_lookup_elem(&code, &zero);

	if (!c)
		return true;
#pragma clang loop unroll(full)
	for (u32 step = MAX_RANGES / 2; step; step >>= 1) {
		u32 next = at + step;

		asm volatile("" : "+r"(next)); /* the verifier needs the mask, the compiler would leave it out */
		if (c->ranges[next & (MAX_RANGES - 1)].start <= word)
			at += step;
	}
	asm volatile("" : "+r"(at));
	at &= MAX_RANGES - 1;
	return word >= c->ranges[at].start && word < c->ranges[at].end;
}

/* matters reports whether an unwinder can depend on a word of the stack. */
static __always_inline bool matters(struct walk *w, u64 word)
{
	if (word - w->sp < w->size || word - w->program < w->program_size)
		return true;
	if (word - w->libraries < w->libraries_size)
		return in_code(word);
	return w->all && word >= 0x1000 && word >> 56 == 0;
}

static long hash_words(u32 step, struct walk *w)
{
	struct scratch *s = w->s;
	u64 hash = w->hash;

#pragma clang loop unroll(full)
	for (u32 i = 0; i < WORDS; i++) {
		u32 at = step * WORDS + i;
		u64 word;

		if (at >= w->words)
			break;
		word = s->stack[at & (MAX_STACK / 8 - 1)];
		if (matters(w, word))
			hash = mix(hash, word ^ (u64)at << 48);
	}
	w->hash = hash;
	return 0;
}

/* copy_stack copies the stack, and returns the length; 0 if it is not readable. */
static __always_inline u64 copy_stack(struct scratch *s, u64 sp)
{
	u64 n = THREAD_STACK;

	s->head.cut = 1;
	if (sp < stack_end && stack_end - sp < 1ULL << 30) {
		n = stack_end - sp;
		s->head.cut = 0;
		if (n > MAX_STACK) {
			n = MAX_STACK;
			s->head.cut = 1;
		}
	}
	n &= ~7ULL;
	if (n <= MAX_STACK && !bpf_probe_read_user(s->stack, n, (void *)sp))
		return n;
	s->head.cut = 1;
#pragma clang loop unroll(full)
	for (int shift = 0; shift < 5; shift++) {
		n = THREAD_STACK >> shift;
		if (!bpf_probe_read_user(s->stack, n, (void *)sp))
			return n;
	}
	return 0;
}

static __always_inline u64 code_pages(void)
{
	struct task_struct *t = bpf_get_current_task_btf();

	return t->mm ? t->mm->exec_vm : 0;
}

/* send hands a stack to user space. If the ring has no room the next allocation with this call path tries again. */
static __always_inline void send(struct scratch *s, struct pt_regs *c, u64 n, struct alloc_sums *sum,
				 struct alloc_counters *all)
{
	struct alloc_registers *r = &s->head.registers;

	r->ip = REG(c, ip);
	r->sp = REG(c, sp);
	r->bp = REG(c, bp);
	r->bx = REG(c, bx);
	r->r12 = REG(c, r12);
	r->r13 = REG(c, r13);
	r->r14 = REG(c, r14);
	r->r15 = REG(c, r15);
	s->head.tid = bpf_get_current_pid_tgid();
	s->head.length = n;
	if (n > MAX_STACK)
		return;
	if (bpf_ringbuf_output(&stacks, &s->head, sizeof(s->head) + n, 0))
		ADD(all->lost_stacks, 1);
	else
		sum->sent = 1;
}

/* path_of returns the number of the call path, after it has taken care that user space has the stack. */
static __always_inline u64 path_of(struct pt_regs *c, struct alloc_counters *all)
{
	u32 zero = 0, tid = bpf_get_current_pid_tgid();
	struct scratch *s = take_scratch(&scratches, NUM_SCRATCH, tid);
	struct alloc_code *where = bpf_map_lookup_elem(&code, &zero);
	struct alloc_sums *sum;
	struct walk w = {};
	u64 n, frame;

	if (!s || !where) {
		ADD(all->no_stack, 1);
		return 0;
	}
	w.sp = REG(c, sp);
	n = copy_stack(s, w.sp);
	if (n == 0) {
		ADD(all->no_stack, 1);
		goto none;
	}
	s->head.code_pages = code_pages();
	w.s = s;
	w.size = n;
	w.words = n >> 3;
	w.all = where->code_pages != s->head.code_pages;
	if (!w.all) {
		w.program = where->ranges[0].start;
		w.program_size = where->ranges[0].end - w.program;
		w.libraries = where->libraries.start;
		w.libraries_size = where->libraries.end - w.libraries;
	}
	/* Where code keeps other things in bp than an address of the stack, no unwinder goes by it. */
	frame = REG(c, bp);
	if (frame - w.sp >= n)
		frame = 0;
	w.hash = mix(mix(mix(w.all, REG(c, ip)), w.sp), frame);
	bpf_loop((w.words + WORDS - 1) / WORDS, hash_words, &w, 0);
	ADD(all->hashed, 1);
	ADD(all->words, w.words);
	if (w.hash == 0)
		w.hash = 1;
	sum = bpf_map_lookup_elem(&sums, &w.hash);
	if (!sum) {
		struct alloc_sums zeros = {};

		bpf_map_update_elem(&sums, &w.hash, &zeros, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&sums, &w.hash);
	}
	if (!sum) {
		ADD(all->other_stacks, 1);
		goto none;
	}
	if (!sum->sent) {
		s->head.number = w.hash;
		send(s, c, n, sum, all);
	}
	s->busy = 0;
	return w.hash;
none:
	s->busy = 0;
	return 0;
}

/* forget takes a block out of the live ones. It returns false if it is not known. */
static __always_inline bool forget(u64 address, struct alloc_block *was)
{
	struct alloc_block *b = bpf_map_lookup_elem(&blocks, &address);
	struct alloc_sums *sum;

	if (!b)
		return false;
	*was = *b;
	if (bpf_map_delete_elem(&blocks, &address))
		return false; /* another thread has */
	sum = bpf_map_lookup_elem(&sums, &was->stack);
	if (sum) {
		ADD(sum->live_objects, -1);
		ADD(sum->live_bytes, -was->size);
	}
	return true;
}

/* remember adds a block to the live ones. */
static __always_inline void remember(u64 address, u64 size, u64 stack, struct alloc_counters *all)
{
	struct alloc_block b = {.size = size, .stack = stack}, was = {};
	struct alloc_sums *sum;

	if (forget(address, &was)) {
		ADD(all->replaced, 1);
		ADD(all->replaced_bytes, was.size);
	}
	if (bpf_map_update_elem(&blocks, &address, &b, BPF_ANY)) {
		ADD(all->untracked, 1);
		ADD(all->untracked_bytes, size);
		return;
	}
	sum = bpf_map_lookup_elem(&sums, &stack);
	if (sum) {
		ADD(sum->live_objects, 1);
		ADD(sum->live_bytes, size);
	}
}

/* older counts the free of a block that is not of this time. */
static __always_inline void older(u64 address, struct alloc_counters *all)
{
	u64 head;

	ADD(all->older, 1);
	if (!has_headers)
		return;
	head = fetch_u64(address - 8, NULL);
	/* The header has two words if the block is a mapping, and one word otherwise. Its low three bits are flags. */
	ADD(all->older_bytes, (head & ~7ULL) - (head & 2 ? 16 : 8));
}

/* unmap forgets a mapping, or its first part. */
static __always_inline void unmap(u64 address, u64 size, struct alloc_counters *all)
{
	struct alloc_block was = {};

	if (!forget(address, &was)) {
		ADD(all->unknown_maps, 1);
		ADD(all->unknown_bytes, size);
		return;
	}
	size = (size + 4095) & ~4095ULL;
	if (was.size > size)
		remember(address + size, was.size - size, was.stack, all);
}

static __always_inline bool from_library(struct pt_regs *c)
{
	return fetch_u64(REG(c, sp), NULL) - library_start < library_size;
}

/* inside reports whether the thread is in an allocation function: realloc can free by calling free. */
static __always_inline bool inside(struct pt_regs *c)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct alloc_call *call = bpf_map_lookup_elem(&calls, &tid);

	return call && call->sp && REG(c, sp) < call->sp;
}

/* charge counts a run, and measures one in 16. */
static __always_inline void charge(struct alloc_counters *all, u64 began)
{
	u64 n = ADD(all->runs, 1), took;

	if (n & 15)
		return;
	took = bpf_ktime_get_ns() - began;
	ADD(all->time, (took < MAX_RUN ? took : MAX_RUN) * 16);
}

/* begin notes a call that will return an address. */
static __always_inline void begin(struct pt_regs *c, u32 kind, struct alloc_counters *all)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct alloc_call *call = bpf_map_lookup_elem(&calls, &tid);
	u64 a = REG(c, di), b = REG(c, si), d = REG(c, dx), sp = REG(c, sp);
	struct alloc_block was = {};

	/* The outer call's stack is above, so it has not returned, unless the process has left it by a jump. */
	if (call && call->sp && sp < call->sp && call->inner++ < MAX_INNER) {
		ADD(all->nested, 1);
		return;
	}
	if (!call) {
		struct alloc_call none = {};

		bpf_map_update_elem(&calls, &tid, &none, BPF_NOEXIST);
		call = bpf_map_lookup_elem(&calls, &tid);
		if (!call) {
			ADD(all->lost_calls, 1);
			return;
		}
	}
	call->kind = kind;
	call->inner = 0;
	call->had_old = 0;
	call->old = 0;
	call->result = 0;
	switch (kind) {
	case KIND_MALLOC:
		call->size = a;
		break;
	case KIND_CALLOC:
		call->size = a * b;
		break;
	case KIND_REALLOC:
		call->size = b;
		call->old = a;
		break;
	case KIND_POSIX_MEMALIGN:
		call->result = a;
		call->size = d;
		break;
	case KIND_MREMAP:
		call->size = d;
		call->old = a;
		break;
	default:
		call->size = b;
	}
	/* Remove the block now: once the function has freed it, another thread can get the same address. */
	if (call->old && forget(call->old, &was)) {
		call->had_old = 1;
		call->old_size = was.size;
		call->old_stack = was.stack;
	} else if (call->old && kind == KIND_REALLOC && has_headers) {
		call->old_size = fetch_u64(call->old - 8, NULL);
	}
	call->stack = path_of(c, all);
	call->sp = sp;
}

SEC("uprobe.multi")
int entered(struct pt_regs *c)
{
	u64 now = bpf_ktime_get_ns(), address = REG(c, di);
	struct alloc_counters *all = all_counters();
	u32 kind = bpf_get_attach_cookie(c);
	struct alloc_block was = {};

	if (!all || kind >= KINDS)
		return 0;
	ADD(all->hits[kind], 1);
	switch (kind) {
	case KIND_FREE:
		if (address && !forget(address, &was) && !inside(c))
			older(address, all);
		break;
	case KIND_MUNMAP:
		if (!from_library(c))
			unmap(address, REG(c, si), all);
		break;
	case KIND_MMAP:
		if (REG(c, cx) & SHARED) {
			ADD(all->shared, 1);
			ADD(all->shared_bytes, REG(c, si));
			break;
		}
		/* fall through */
	case KIND_MREMAP:
		if (!from_library(c))
			begin(c, kind, all);
		break;
	default:
		begin(c, kind, all);
	}
	charge(all, now);
	return 0;
}

/* finish accounts for a call that returns address. */
static __always_inline void finish(struct alloc_call *call, u64 address, struct alloc_counters *all)
{
	bool failed = address == 0, freed = call->kind == KIND_REALLOC && call->size == 0;
	struct alloc_sums *sum;

	if (call->kind == KIND_MMAP || call->kind == KIND_MREMAP) {
		failed = address > -4096ULL;
		call->size = (call->size + 4095) & ~4095ULL;
	}
	if (failed) {
		if (call->had_old && !freed)
			remember(call->old, call->old_size, call->old_stack, all); /* it is as it was */
		else if (call->old && !call->had_old && freed)
			ADD(all->older, 1);
		if (!freed)
			ADD(all->failed, 1);
		return;
	}
	if (call->old && !call->had_old) {
		u64 head = call->old_size;

		ADD(all->older, 1);
		if (call->kind == KIND_REALLOC && has_headers)
			ADD(all->older_bytes, (head & ~7ULL) - (head & 2 ? 16 : 8));
	}
	sum = bpf_map_lookup_elem(&sums, &call->stack);
	if (sum) {
		ADD(sum->objects, 1);
		ADD(sum->bytes, call->size);
	}
	remember(address, call->size, call->stack, all);
}

SEC("uprobe.multi")
int returned(struct pt_regs *c)
{
	u64 now = bpf_ktime_get_ns(), address = REG(c, ax);
	u32 tid = bpf_get_current_pid_tgid();
	struct alloc_counters *all = all_counters();
	struct alloc_call *call = bpf_map_lookup_elem(&calls, &tid);

	if (!all)
		return 0;
	/* Not the return of an inner call, of a call that is not counted, or of a call from before the start. */
	if (!call || !call->sp || REG(c, sp) < call->sp + 8)
		return 0;
	if (REG(c, sp) == call->sp + 8) {
		if (call->kind == KIND_POSIX_MEMALIGN)
			address = (u32)address == 0 ? fetch_u64(call->result, NULL) : 0;
		finish(call, address, all);
	} else {
		ADD(all->unmatched, 1);
	}
	call->sp = 0;
	charge(all, now);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int exited(u64 *ctx)
{
	struct task_struct *t = (void *)ctx[0];
	u32 tid = t->pid;

	/* Threads of the whole host pass here. A lookup takes no lock. */
	if (bpf_map_lookup_elem(&calls, &tid))
		bpf_map_delete_elem(&calls, &tid);
	return 0;
}
