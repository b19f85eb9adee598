// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
//go:build ignore

/* Times the wait events of a PostgreSQL server, from the kernel.
 *
 * A process of the server has the number of its wait event in shared memory, in its element of the array of PGPROC
 * structures, while it waits. Nothing in the server is called when that number changes. So these programs read it
 * where a wait reaches the kernel: when a process enters and leaves a system call (exact), or when it
 * gives up its processor to wait and comes back (blocked).
 *
 * The server's processes are the children of the postmaster. Each has one slot of the table slots, with the index of
 * its PGPROC, and only that process writes there. So only the word that orders the writes needs atomic operations, and
 * user space reads the table by mmap.
 *
 * These instructions may be used under the MIT License. */
#include "buckets.h"
#include "memory.h"
#include "scheduler.h"
#include "server.h"

/* Counters, by processor. */
enum {
	LOST_SLOTS, LOST_RECORDS, LOST_QUERIES, OUTSIDE, RUNS, RUN_TIME, LOST_STACKS, CAUGHT_UP, COUNTERS,
	MEASURED_FIRST = 0, MEASURED_EVERY = 64,
};
#include "cost.h"

char LICENSE[] SEC("license") = "GPL";

/* The server, set by user space before the programs are loaded. Addresses are those of a child of the postmaster. */
const volatile u64 wait_pointer = 0;    /* &my_wait_event_info */
const volatile u64 first_wait = 0;      /* &allProcs[0].wait_event_info */
const volatile u32 proc_size = 1;       /* sizeof(PGPROC) */
const volatile u32 procs = 0;           /* elements of allProcs */
const volatile u64 status_pointer = 0;  /* &MyBEEntry, 0: no query ids */
const volatile u32 query_offset = 0;    /* offsets in PgBackendStatus */
const volatile u32 state_offset = 0;
const volatile u32 since_offset = 0;
const volatile u32 changed_offset = 0;
const volatile u32 state_idle = 0;      /* a value of BackendState */
const volatile u32 state_running = 0;
const volatile u64 wanted[8] = {};      /* system calls to time, a bit for each number */
const volatile u32 read_call = 0;       /* read(2): timed for IO events only */
const volatile u32 send_call = 0;       /* sendto(2): not timed, see answer */

const volatile u32 sp_word = 0;         /* of struct pt_regs: the stack pointer */
const volatile u32 stack_every = 0;     /* copy the stack of one in so many waits; 0: of none */
const volatile u64 stack_longer = 0;    /* and of waits of at least so many ns; 0: of none */

/* User space writes this when the programs are attached, and at a reset of all figures: us since 2000, as the server's time stamps. The
 * time of a statement before it does not count. */
volatile u64 counted_since;

const volatile u32 unseen = 0; /* for tests: ignore one in so many switches to a server process; 0: none */

/* EVENTS is how many events a slot can hold, BUCKETS how many ranges the histogram has. */
enum { EVENTS = 64, BUCKETS = 32, CLASS_IO = 0x0a };

/* An event's figures. hist may wrap; user space adds up differences. Bucket 0 is for less than 1024 ns, the last for
 * 2^40 ns and more, each other for up to twice the one before. The number of waits is the sum of hist. */
struct event {
	u64 total, longest;
	u32 key, unused;
	u32 hist[BUCKETS];
};

struct slot {
	u32 sequence;          /* odd while a program writes */
	u32 pid;               /* the process that the figures are of */
	u64 since;             /* when the wait in progress began, 0: none */
	u32 waiting;           /* its event */
	u32 generation;        /* of the figures; they are void if it is not the wanted one */
	u32 wanted_generation; /* user space writes this, to reset */
	u32 traced;            /* user space writes this */
	u64 reset_at;          /* user space writes this: the part of a wait before it does not count */
	u64 overflow;          /* waits for which there was no room */
	u64 status;            /* the address of the process's entry in pg_stat_activity, 0: not known yet */
	u64 started;           /* st_activity_start_timestamp of the last statement seen, and whether it was seen to end */
	u64 ended;
	u64 query;             /* that the wait in progress is attributed to */
	u32 life;              /* changes whenever the figures are cleared */
	u32 index;             /* of the slot */
	struct event events[EVENTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* The slot of each process, plus one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 32768);
	__type(key, u32);
	__type(value, u16);
} slot_of_pid SEC(".maps");

/* A slot without figures, to clear others with. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct slot);
} empty SEC(".maps");

/* Figures of processes that have ended or lost their slot. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} gone SEC(".maps");

/* A record of a traced process: a wait, or the start or end of a statement or of its executor. */
struct record {
	u64 at, took; /* ns; of a statement: us since 2000 */
	u64 query;
	u32 event;
	u32 pid_kind; /* process id << 3 | kind */
};

enum { KIND_WAIT, KIND_START, KIND_END, KIND_EXECUTOR_START, KIND_EXECUTOR_END };

/* Not 0: every process is traced. User space writes this. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} trace_all SEC(".maps");

/* Without a variable of the type the compiler does not describe it, and bpf2go makes no Go type of it. */
const struct record *record_type __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} trace SEC(".maps");

/* Waits by query; event 0 stands for the statements themselves. */
struct query_key {
	u64 query;
	u32 event, unused;
};

struct query_figures {
	u64 calls, total;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct query_key);
	__type(value, struct query_figures);
} queries SEC(".maps");

/* Stacks of waits. Only the programs for system calls copy them: at the end of a call the process still has the stack of
 * its beginning. */
enum { REGISTERS = 21, MAX_STACK = 32 << 10, SCRATCHES = 8 };

struct wait_stack {
	u64 took, query;
	u32 event, pid;
	u32 length, cut; /* of the copy, which follows; it begins at the stack pointer, and ends before the stack does */
	u64 registers[REGISTERS]; /* struct pt_regs */
};

const struct wait_stack *wait_stack_type __attribute__((unused));

struct stack_scratch {
	u32 busy, unused;
	struct wait_stack head;
	u8 stack[MAX_STACK];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCRATCHES);
	__type(key, u32);
	__type(value, struct stack_scratch);
} stack_scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} stacks SEC(".maps");

static __always_inline struct slot *slot_of(u32 pid)
{
	u16 *index = bpf_map_lookup_elem(&slot_of_pid, &pid);
	struct slot *s;
	u32 i;

	if (!index || !*index)
		return 0;
	i = *index - 1;
	s = bpf_map_lookup_elem(&slots, &i);
	return s && s->pid == pid ? s : 0;
}

/* turn changes the sequence of a slot, before its figures change and after that. No store moves across it. On aarch64
 * only an atomic instruction that fetches the old value has this effect. */
static __always_inline void turn(struct slot *s)
{
	u32 was = __sync_fetch_and_add(&s->sequence, 1);

	asm volatile("" : : "r"(was) : "memory"); /* otherwise the compiler chooses an instruction that fetches nothing */
}

/* clear empties a slot's figures, for pid. The words that user space writes stay. */
static __always_inline void clear(struct slot *s, u32 pid)
{
	u32 zero = 0;
	void *e = bpf_map_lookup_elem(&empty, &zero);

	if (!e)
		return;
	if (!(s->sequence & 1))
		turn(s);
	bpf_probe_read_kernel(s->events, sizeof(s->events), e);
	s->overflow = 0;
	s->since = 0;
	s->generation = s->wanted_generation;
	if (s->pid != pid) {
		s->status = s->started = s->ended = 0;
		s->traced = 0;
	}
	s->pid = pid;
	s->life++;
	turn(s);
}

/* give_up hands the figures of a process that has ended, or whose slot another takes over, to user space. */
static __always_inline void give_up(struct slot *s)
{
	void *r;

	if (!s->pid || s->generation != s->wanted_generation)
		return;
	r = bpf_ringbuf_reserve(&gone, sizeof(*s), 0);
	if (!r) {
		count(LOST_SLOTS, 1);
		return;
	}
	bpf_probe_read_kernel(r, sizeof(*s), s);
	bpf_ringbuf_submit(r, 0);
}

static __always_inline void add(struct slot *s, u32 event, u64 ns)
{
	u32 at = (event ^ (event >> 24) * 7) & (EVENTS - 1);

	if (s->generation != s->wanted_generation)
		clear(s, s->pid);
	turn(s);
#pragma clang loop unroll(disable)
	for (int i = 0; i < EVENTS; i++) {
		struct event *e = &s->events[(at + i) & (EVENTS - 1)];

		if (!e->key)
			e->key = event;
		if (e->key == event) {
			e->total += ns;
			if (ns > e->longest)
				e->longest = ns;
			e->hist[bucket(ns >> 9, BUCKETS - 1) & (BUCKETS - 1)]++;
			goto done;
		}
	}
	s->overflow++;
done:
	turn(s);
}

static __always_inline void add_query(u64 query, u32 event, u64 ns)
{
	struct query_key k = {.query = query, .event = event};
	struct query_figures *f = bpf_map_lookup_elem(&queries, &k), none = {};

	if (!f) {
		bpf_map_update_elem(&queries, &k, &none, BPF_NOEXIST);
		f = bpf_map_lookup_elem(&queries, &k);
	}
	if (!f) {
		count(LOST_QUERIES, 1);
		return;
	}
	__sync_fetch_and_add(&f->calls, 1);
	__sync_fetch_and_add(&f->total, ns);
}

static __always_inline void emit(struct slot *s, u32 kind, u32 event, u64 at, u64 took, u64 query)
{
	struct record *r = bpf_ringbuf_reserve(&trace, sizeof(*r), 0);

	if (!r) {
		count(LOST_RECORDS, 1);
		return;
	}
	r->at = at;
	r->took = took;
	r->query = query;
	r->event = event;
	r->pid_kind = s->pid << 3 | kind;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static __always_inline bool is_traced(struct slot *s)
{
	u32 zero = 0, *all;

	if (s->traced)
		return true;
	all = bpf_map_lookup_elem(&trace_all, &zero);
	return all && *all;
}

/* times reads st_activity_start_timestamp and st_state_start_timestamp. One call costs less than two. */
static __always_inline void times(u64 status, u64 *since, u64 *changed)
{
	u64 both[2] = {};

	if (changed_offset == since_offset + sizeof(u64)) {
		bpf_probe_read_user(both, sizeof(both), (void *)(status + since_offset));
		*since = both[0];
		*changed = both[1];
		return;
	}
	*since = fetch_u64(status + since_offset, NULL);
	*changed = fetch_u64(status + changed_offset, NULL);
}

/* statement notices, at a wait, that a statement has begun or ended since the last wait, by the two time stamps that the
 * server keeps of each session. It returns the query id that the wait is to be attributed to. */
static __always_inline u64 statement(struct slot *s)
{
	u64 status = s->status, query, since, changed, counted = counted_since;
	u32 state;

	if (!status)
		status = s->status = fetch_u64(status_pointer, NULL);
	if (!status)
		return 0;
	state = fetch_u32(status + state_offset, NULL);
	if (state < state_idle)
		return 0;
	times(status, &since, &changed);
	if (state == state_running) {
		query = fetch_u64(status + query_offset, NULL);
		if (since != s->started) {
			s->started = since;
			if (is_traced(s))
				emit(s, KIND_START, 0, since, 0, query);
		}
		return query;
	}
	if (!since || changed < since || changed == s->ended)
		return 0;
	query = fetch_u64(status + query_offset, NULL);
	s->ended = changed;
	if (is_traced(s)) {
		if (since != s->started)
			emit(s, KIND_START, 0, since, 0, query);
		emit(s, KIND_END, 0, changed, changed - since, query);
	}
	s->started = since;
	if (query && changed >= counted)
		add_query(query, 0, (changed - (since > counted ? since : counted)) * 1000);
	return 0;
}

/* begin notes the start of a wait, if the current process waits and has a slot. */
static __always_inline void begin(u32 pid, u64 now, bool only_io)
{
	u64 p = fetch_u64(wait_pointer, NULL);
	u32 event = fetch_u32(p, NULL), i;
	struct slot *s;
	u16 *index;

	if (!event) {
		s = slot_of(pid);
		if (s)
			s->since = 0;
		return;
	}
	if (only_io && event >> 24 != CLASS_IO)
		return;
	if (p - first_wait >= (u64)procs * proc_size) {
		count(OUTSIDE, 1); /* before it has joined the shared memory, or after it has left */
		return;
	}
	i = (u32)(p - first_wait) / proc_size;
	s = bpf_map_lookup_elem(&slots, &i);
	index = bpf_map_lookup_elem(&slot_of_pid, &pid);
	if (!s || !index)
		return;
	if (s->pid != pid) {
		give_up(s);
		s->index = i;
		clear(s, pid);
		*index = i + 1;
	}
	s->waiting = event;
	s->query = status_pointer ? statement(s) : 0;
	s->since = now;
}

/* end accounts for the wait in progress. Its record has the whole duration, also if the figures were reset meanwhile. */
static __always_inline void end(struct slot *s, u64 now)
{
	u64 query = s->query;
	u64 since = s->since, counted_from = since < s->reset_at ? s->reset_at : since;
	u64 ns = now > since ? now - since : 0;
	u64 counted = now > counted_from ? now - counted_from : 0;
	u32 event = s->waiting;

	s->since = 0;
	add(s, event, counted);
	if (query)
		add_query(query, event, counted);
	if (is_traced(s))
		emit(s, KIND_WAIT, event, now, ns, query);
}

/* send_stack hands registers and stack of the current process to user space. */
static __always_inline void send_stack(struct stack_scratch *s, struct task_struct *t)
{
	u32 word = sp_word;
	u64 sp, end, n;

	bpf_probe_read_kernel(s->head.registers, sizeof(s->head.registers), (void *)bpf_task_pt_regs(t));
	if (word >= REGISTERS)
		return;
	sp = s->head.registers[word];
	end = t->mm ? t->mm->start_stack : 0;
	s->head.cut = 0;
	n = end - sp + 64; /* with the number of arguments, where an unwinder looks for the end */
	if (n > MAX_STACK) {
		n = MAX_STACK;
		s->head.cut = 1;
	}
	if (bpf_probe_read_user(s->stack, n, (void *)sp)) {
		count(LOST_STACKS, 1);
		return;
	}
	s->head.length = n;
	if (bpf_ringbuf_output(&stacks, &s->head, sizeof(s->head) + n, BPF_RB_NO_WAKEUP))
		count(LOST_STACKS, 1);
}

/* keep_stack copies the stack of a wait that has just ended, if it is to be kept. */
static __noinline void keep_stack(u64 took, u64 query, u32 event, u32 pid)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct stack_scratch *s;

	if (!(stack_longer && took >= stack_longer) && !(stack_every && bpf_get_prandom_u32() % stack_every == 0))
		return;
	s = take_scratch(&stack_scratches, SCRATCHES, pid);
	if (!s) {
		count(LOST_STACKS, 1);
		return;
	}
	s->head.took = took;
	s->head.query = query;
	s->head.event = event;
	s->head.pid = pid;
	send_stack(s, t);
	s->busy = 0;
}

/* catch_up ends the wait of a process that leaves its processor and was not seen to get it. A kernel may run no program
 * when certain other processes leave a processor. The scheduler has counted how long the process had the processor. */
static __always_inline void catch_up(struct task_struct *t, struct slot *s, u64 now)
{
	count(CAUGHT_UP, 1);
	end(s, now - last_run(t));
}

SEC("tp_btf/sched_switch")
int switched(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct slot *s;
	u64 now = 0;

	if (is_server_process(prev) && !(prev->flags & PF_EXITING)) {
		s = slot_of(prev->pid);
		/* A process that is preempted on its way to sleep waits, too. It may not sleep any more when it is back: what
		 * it waits for can have happened. */
		if (prev->__state) {
			now = bpf_ktime_get_ns();
			if (s && s->since)
				catch_up(prev, s, now);
			begin(prev->pid, now, false);
		} else if (s && s->since) {
			now = bpf_ktime_get_ns();
			catch_up(prev, s, now);
		}
	}
	if (is_server_process(next)) {
		s = slot_of(next->pid);
		if (s && s->since && !(unseen && bpf_get_prandom_u32() % unseen == 0)) {
			now = now ? now : bpf_ktime_get_ns();
			end(s, now);
		}
	}
	if (now)
		charge(now);
	return 0;
}

static __always_inline void enter(struct task_struct *t, bool only_io)
{
	u64 now = bpf_ktime_get_ns();

	begin(t->pid, now, only_io);
	charge(now);
}

/* answer notices the end of a statement of a traced process. A session sends the rest of its answer after it has noted
 * the end, and before it reads the next statement. If that has arrived, the session does not wait for it. */
static __always_inline void answer(struct task_struct *t)
{
	struct slot *s = slot_of(t->pid);
	u64 now;

	if (!status_pointer || !s || !is_traced(s))
		return;
	now = bpf_ktime_get_ns();
	statement(s);
	charge(now);
}

static __always_inline bool is_wanted(u64 call)
{
	return call < 512 && wanted[call >> 6 & 7] >> (call & 63) & 1;
}

SEC("tp_btf/sys_enter")
int entered(u64 *ctx)
{
	u64 call = ctx[1];
	struct task_struct *t;

	if (!is_wanted(call) && call != send_call)
		return 0;
	t = bpf_get_current_task_btf();
	if (!is_server_process(t))
		return 0;
	if (call == send_call)
		answer(t);
	else
		enter(t, call == read_call);
	return 0;
}

static __always_inline void leave(void)
{
	struct task_struct *t = bpf_get_current_task_btf();
	struct slot *s = slot_of(t->pid);
	u64 now, since, query;
	u32 event;

	if (!s || !s->since)
		return;
	now = bpf_ktime_get_ns();
	since = s->since;
	query = s->query;
	event = s->waiting;
	end(s, now);
	if (stack_every || stack_longer)
		keep_stack(now - since, query, event, t->pid);
	charge(now);
}

SEC("tp_btf/sys_exit")
int left(u64 *ctx)
{
	leave();
	return 0;
}

/* These are for the system calls' own functions, where the kernel has trampolines: one copy for each function. */
SEC("fentry/bpf_fentry_test1")
int call_entered(u64 *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();

	if (is_server_process(t))
		enter(t, false);
	return 0;
}

SEC("fentry/bpf_fentry_test1")
int read_entered(u64 *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();

	if (is_server_process(t))
		enter(t, true);
	return 0;
}

SEC("fentry/bpf_fentry_test1")
int send_entered(u64 *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();

	if (is_server_process(t))
		answer(t);
	return 0;
}

SEC("fexit/bpf_fentry_test1")
int call_left(u64 *ctx)
{
	leave();
	return 0;
}

SEC("tp_btf/sched_process_exit")
int ended(u64 *ctx)
{
	struct task_struct *t = (void *)ctx[0];
	struct slot *s;
	u16 *index;
	u32 pid;

	if (!is_child(t))
		return 0;
	pid = t->pid;
	s = slot_of(pid);
	if (s) {
		if (s->since)
			end(s, bpf_ktime_get_ns());
		give_up(s);
		clear(s, 0);
	}
	index = bpf_map_lookup_elem(&slot_of_pid, &pid);
	if (index)
		*index = 0;
	return 0;
}

/* executor is called at the start and the end of the executor, of a single traced process. The cookie is the kind. */
SEC("uprobe.multi")
int executor(void *ctx)
{
	u32 kind = bpf_get_attach_cookie(ctx), pid = bpf_get_current_pid_tgid() >> 32;
	struct slot *s = slot_of(pid);
	u64 status = fetch_u64(status_pointer, NULL);

	if (s && status)
		emit(s, kind & 7, 0, bpf_ktime_get_ns(), 0, fetch_u64(status + query_offset, NULL));
	return 0;
}
