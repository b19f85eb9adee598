// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
//go:build ignore

/*
 * cluster.bpf.c: samples all processes of a PostgreSQL server, and follows their context switches.
 *
 * The server's processes are the children of the postmaster. The programs check this at each event. So they see a new
 * process from its first instruction on, and the number of processes does not matter. User space can choose some.
 *
 * on_clock runs on each processor, some times a second. If the clock has interrupted a server process, on_clock copies
 * its registers, its stack and its entry in pg_stat_activity to a ring. Nothing of the process can change meanwhile.
 *
 * on_switch runs when a processor changes from one thread to another. It adds up the time of each server process on
 * and off the processor. The time off is kept by wait event, query and state. Of some of these waits it copies the
 * stack, but of each process only so many in a second. User space calls read_sleeper, which copies the stack of a
 * process that sleeps for long.
 *
 * No program runs when a process is woken. From then on the process waits for a processor, and the scheduler counts
 * that time itself, in task->sched_info.run_delay. It adds the time of a wait after on_switch has seen the process get
 * its processor. So on_switch divides a wait into sleep and delay when the process leaves that processor again.
 */
#include "memory.h"
#include "registers.h"
#include "scheduler.h"
#include "server.h"

/* Counters, by processor. */
enum { LOST, UNCOUNTED, RUNS, RUN_TIME, LAST_STACK, COUNTERS, MEASURED_FIRST = 256, MEASURED_EVERY = 16 };
#include "cost.h"

char LICENSE[] SEC("license") = "GPL";

enum {
	MAX_STACK = 128 << 10, /* bytes of one stack */
	NAME = 64,             /* NAMEDATALEN */
	LEVELS = 5,            /* functions of procedural languages whose names are copied */
	CONTEXTS = 10,         /* entries of error_context_stack that are followed */
	START_UNIT = 10000000, /* ns: /proc/PID/stat has the start time of a process in this unit */
	BEHIND_STACK = 64,     /* bytes behind start_stack that belong to the stack: argc and argv */
};

/* The server and the rates, set by user space before the programs are loaded. Addresses are those of a child of the
 * postmaster, offsets those in the server's structures. */
const volatile u64 wait_pointer = 0;   /* &my_wait_event_info */
const volatile u64 status_pointer = 0; /* &MyBEEntry */
const volatile u64 port_pointer = 0;   /* &MyProcPort, 0: no names */
const volatile u64 type_variable = 0;  /* &MyBackendType, 0: unknown */
const volatile u64 worker_pointer = 0; /* &MyBgworkerEntry, 0: no types of background workers */
const volatile u32 worker_type = 0;    /* B_BG_WORKER */
const volatile u32 worker_offset = 0;  /* of bgw_type in BackgroundWorker */
const volatile u32 type_offset = 0;    /* offsets in PgBackendStatus */
const volatile u32 database_offset = 0;
const volatile u32 user_offset = 0;
const volatile u32 state_offset = 0;
const volatile u32 name_offset = 0;
const volatile u32 query_offset = 0;
const volatile u32 port_database = 0;  /* offsets in Port */
const volatile u32 port_user = 0;
const volatile u64 context_pointer = 0; /* &error_context_stack, 0: no functions of procedural languages */
const volatile u32 statement_offset = 0; /* of err_stmt in PLpgSQL_execstate */
const volatile u32 signature_offset = 0; /* of fn_signature in PLpgSQL_function */
const volatile u32 red_zone = 128;
const volatile u32 processors = 0;     /* elements of scratch, without the last */
const volatile u64 stack_period = 0;   /* ns between two stacks of one process */
const volatile u64 stack_spacing = 0;  /* ns between two stacks of one processor */

const volatile bool only_chosen = false; /* sample the processes in chosen only */

/* Set when the programs are attached: CLOCK_MONOTONIC. Nothing is taken after until. */
volatile u64 attached;
volatile u64 until;

/* The kind of a record. */
enum { KIND_RUNNING = 1, KIND_OFF, KIND_SLEEPER, KIND_OFF_END, KIND_EXIT };

/* Flags of a sample. */
enum {
	HAS_ENTRY = 1,	/* the process has an entry in pg_stat_activity */
	CONSISTENT = 2, /* and was not changing it */
	NO_STACK = 4,
	CUT_STACK = 8,	/* not all of the stack was readable */
	RUNNABLE = 16,	/* off the processor, but does not sleep */
	HAS_PORT = 32,
};

/* What a process does by its own account. */
struct labels {
	u32 flags;
	u32 event;
	u32 type, database, user, state;
	u64 query;
	u8 name[NAME];		/* application_name */
	u8 database_name[NAME];
	u8 user_name[NAME];
	u8 worker[NAME];		/* what kind of background worker it is */
};

/* What may be a function of PL/pgSQL, which user space decides. The state of its execution, which has the addresses of
 * the other structures, lies in the stack. */
struct level {
	u64 function_at, signature_at, statement_at;
	u8 function[56];
	u8 statement[56];
	u8 signature[128];
};

/* What the ring holds: of OFF_END and EXIT only this, of the other kinds a record. */
struct head {
	u32 kind;
	u32 pid;
	u64 started; /* when the process started, ns since boot */
	u64 at;      /* CLOCK_MONOTONIC */
	u64 number;  /* of the wait */
	u64 first;   /* OFF: waits since the last stack; OFF_END: how long the wait was; EXIT: time on the processor */
	u64 second;  /* OFF_END: how long it waited for a processor; EXIT: time off the processor */
};

struct record {
	struct head head;
	struct labels labels;
	u64 registers[NUM_REGISTERS];
	u64 stack_start;
	u64 stack_length;
	u64 context; /* error_context_stack */
	u32 num_levels, unused;
	struct level levels[LEVELS];
};

struct sample {
	struct record record;
	char stack[MAX_STACK];
};

/* The state of a process. Only the processor that it runs on or leaves writes here. */
struct process {
	u64 started;	/* ns since boot; 0: not known yet */
	u64 since;	/* when the present state began */
	u64 on, off;	/* ns in all */
	u64 number;	/* of times that it has left a processor */
	u64 due;	/* when a stack may be taken again */
	u64 stack;	/* the number of the last wait with a stack */
	u64 without;	/* waits since then */
	u64 query;	/* these: of the present wait */
	u32 event, state;
	u32 runnable;
	u32 running;
	u64 same_ns, same_waits; /* the last waits while the process did the same, not yet in wait_times */
	u64 same_delay;		 /* the part of same_ns in which it waited for a processor */
	u64 same_query;		 /* these: of the same waits */
	u32 same_event, same_state;
	u32 entry_changes;	 /* st_changecount of the entry in pg_stat_activity when it was read; 0: not read yet */
	u32 entry_state;	 /* these: of the entry then */
	u64 entry_query;
	u64 exec;		 /* processor time when it got the processor, by the scheduler; 0: not seen */
	u64 delay;		 /* run_delay at the last division of a wait */
	u64 undivided_ns;	 /* the wait before the present run */
	u32 undivided;		 /* whether that wait is still to be divided and accounted for */
	u32 noted;		 /* set by note_delay, with the next two */
	u64 noted_delay, noted_queued; /* run_delay and last_queued */
	u64 clock;		 /* CLOCK_MONOTONIC minus the scheduler's clock, when it last got a processor; 0: unknown */
};

/* Time off the processor, by what the process did. */
struct wait_key {
	u64 query;
	u64 started;
	u32 pid;
	u32 event, state;
	u32 unused;
};

struct wait_time {
	u64 ns, waits;
	u64 delay; /* the part of ns in which the process waited for a processor */
};

const struct record *record_type __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20); /* user space sets it */
} ring SEC(".maps");

/* Start times of the chosen processes, in START_UNIT. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* user space sets it */
	__type(key, u32);
	__type(value, u64);
} chosen SEC(".maps");

/* Where a sample is put together: an element for each processor, and the last for read_sleeper. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sample);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct process);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct wait_key);
	__type(value, struct wait_time);
} wait_times SEC(".maps");

/* is_sampled reports whether a thread is the main thread of a process to sample: of any process of the server, or of a
 * chosen one. The postmaster can be chosen, too. */
static __always_inline bool is_sampled(struct task_struct *t)
{
	u32 pid = t->tgid;
	u64 *start;

	if (!only_chosen)
		return is_server_process(t);
	if (t->pid != t->tgid)
		return false;
	start = bpf_map_lookup_elem(&chosen, &pid);
	if (!start || t->start_boottime / START_UNIT != *start)
		return false;
	return pid == postmaster || is_server_process(t);
}

/* entry returns the address of the process's entry in pg_stat_activity; 0 if it has none. While the process changes
 * the entry, the number at its beginning is odd. */
static __always_inline u64 entry(u32 *flags, struct task_struct *sleeper)
{
	u64 status = fetch_u64(status_pointer, sleeper);
	u32 changes = 0;

	if (!status)
		return 0;
	if (!fetch(&changes, sizeof(changes), status, sleeper))
		return 0;
	*flags |= HAS_ENTRY;
	if (changes & 1)
		return 0;
	*flags |= CONSISTENT;
	return status;
}

static __always_inline u32 wait_event(struct task_struct *sleeper)
{
	u64 p = fetch_u64(wait_pointer, sleeper);

	return p ? fetch_u32(p, sleeper) : 0;
}

/* read_labels reads what a process does by its own account. */
static __always_inline void read_labels(struct labels *l, struct task_struct *sleeper)
{
	u32 flags = 0;
	u64 status, port, name;

	l->event = wait_event(sleeper);
	l->name[0] = l->database_name[0] = l->user_name[0] = l->worker[0] = 0;
	status = entry(&flags, sleeper);
	if (status) {
		l->type = fetch_u32(status + type_offset, sleeper);
		l->database = fetch_u32(status + database_offset, sleeper);
		l->user = fetch_u32(status + user_offset, sleeper);
		l->state = fetch_u32(status + state_offset, sleeper);
		l->query = fetch_u64(status + query_offset, sleeper);
		name = fetch_u64(status + name_offset, sleeper);
		if (name && !fetch(l->name, NAME, name, sleeper))
			l->name[0] = 0;
	}
	if (!(flags & HAS_ENTRY))
		l->type = type_variable ? fetch_u32(type_variable, sleeper) : 0;
	if (status && worker_pointer && l->type == worker_type) {
		name = fetch_u64(worker_pointer, sleeper);
		if (!name || !fetch(l->worker, NAME, name + worker_offset, sleeper))
			l->worker[0] = 0;
	}
	port = port_pointer ? fetch_u64(port_pointer, sleeper) : 0;
	if (status && port) {
		flags |= HAS_PORT;
		name = fetch_u64(port + port_database, sleeper);
		if (!name || !fetch(l->database_name, NAME, name, sleeper))
			l->database_name[0] = 0;
		name = fetch_u64(port + port_user, sleeper);
		if (!name || !fetch(l->user_name, NAME, name, sleeper))
			l->user_name[0] = 0;
	}
	l->flags = flags;
}

/* copy_levels copies what the entries of error_context_stack lead to, if these and their arguments lie in the stack. */
static __always_inline void copy_levels(struct record *r, u64 stack_end, struct task_struct *sleeper)
{
	u64 at = context_pointer ? fetch_u64(context_pointer, sleeper) : 0, first = r->stack_start;
	u64 entry[3] = {};
	u32 n = 0;

	r->context = at;
	for (u32 i = 0; i < CONTEXTS && n < LEVELS; i++) {
		struct level *l = &r->levels[n];

		if (at < first || at >= stack_end || !fetch(entry, sizeof(entry), at, sleeper))
			break;
		at = entry[0];
		if (entry[2] < first || entry[2] >= stack_end)
			continue;
		l->function_at = fetch_u64(entry[2], sleeper);
		l->statement_at = fetch_u64(entry[2] + statement_offset, sleeper);
		if (!l->function_at || !fetch(l->function, sizeof(l->function), l->function_at, sleeper))
			continue;
		l->signature_at = fetch_u64(l->function_at + signature_offset, sleeper);
		if (!l->signature_at || !fetch(l->signature, sizeof(l->signature), l->signature_at, sleeper))
			continue;
		if (!l->statement_at || !fetch(l->statement, sizeof(l->statement), l->statement_at, sleeper))
			l->statement_at = 0;
		n++;
	}
	r->num_levels = n;
}

/*
 * copy_stack copies as much of the stack as is readable: all of it that is in memory, or what lies in the page of the
 * stack pointer. It returns the length.
 */
static __always_inline u64 copy_stack(struct sample *s, struct task_struct *task, struct task_struct *sleeper)
{
	u64 start = s->record.registers[WORD_SP] - red_zone, end = task->mm->start_stack + BEHIND_STACK, length = end - start;

	s->record.stack_start = start;
	copy_levels(&s->record, end, sleeper);
	if (length <= MAX_STACK && fetch(s->stack, length, start, sleeper))
		return length;
	start = first_present(start, sleeper);
	s->record.stack_start = start;
	length = end - start;
	if (length > MAX_STACK) {
		length = MAX_STACK; /* it is longer, or the stack pointer lies elsewhere */
		s->record.labels.flags |= CUT_STACK;
	}
	if (fetch(s->stack, length, start, sleeper))
		return length;
	s->record.labels.flags |= CUT_STACK;
	length = PAGE - (start & (PAGE - 1));
	if (length > PAGE)
		length = PAGE;
	if (fetch(s->stack, length, start, sleeper))
		return length;
	s->record.labels.flags |= NO_STACK;
	return 0;
}

/* send hands a sample to user space. It returns false if there is no room. */
static __always_inline bool send(struct sample *s, u64 length)
{
	s->record.stack_length = length;
	length += sizeof(struct record);
	if (length > sizeof(struct sample))
		return false;
	if (!bpf_ringbuf_output(&ring, s, length, BPF_RB_NO_WAKEUP))
		return true;
	count(LOST, 1);
	return false;
}

static __always_inline void describe(struct head *r, struct task_struct *t, u32 kind, u64 now)
{
	r->kind = kind;
	r->pid = t->tgid;
	r->started = t->start_boottime;
	r->at = now;
}

SEC("perf_event")
int on_clock(void *ctx)
{
	struct task_struct *t = bpf_get_current_task_btf();
	u32 index = bpf_get_smp_processor_id();
	struct sample *s;
	u64 now;

	if (!is_sampled(t))
		return 0;
	now = bpf_ktime_get_ns();
	s = bpf_map_lookup_elem(&scratch, &index);
	if (!s || index >= processors || now > until || !t->mm)
		return 0;
	describe(&s->record.head, t, KIND_RUNNING, now);
	if (!copy_registers(s->record.registers, t)) {
		count(LOST, 1);
		return 0;
	}
	read_labels(&s->record.labels, NULL);
	send(s, copy_stack(s, t, NULL));
	charge(now);
	return 0;
}

/* run_delay returns how long a task has waited for processors, until it last got one. 0: this kernel does not count. */
static __always_inline u64 run_delay(struct task_struct *t)
{
	if (!field_exists(t->sched_info.run_delay))
		return 0;
	return t->sched_info.run_delay;
}

/* process_of returns the element of a process, and makes one for a new process. An ending process has none: user space
 * has got its times already. */
static __always_inline struct process *process_of(struct task_struct *t)
{
	u32 pid = t->tgid;
	struct process *p = bpf_map_lookup_elem(&processes, &pid), none = {};

	if (p && p->started == 0) { /* user space has made the element */
		p->started = t->start_boottime;
		p->delay = run_delay(t);
	}
	if (p && p->started == t->start_boottime)
		return p;
	if (t->flags & PF_EXITING)
		return NULL;
	none.started = t->start_boottime;
	none.since = t->start_time > attached ? t->start_time : attached;
	none.runnable = t->start_time > attached; /* a child that was just forked waits for a processor */
	none.delay = run_delay(t);
	bpf_map_update_elem(&processes, &pid, &none, BPF_ANY);
	p = bpf_map_lookup_elem(&processes, &pid);
	if (!p)
		count(UNCOUNTED, 1);
	return p;
}

/* stack_is_due reports whether to take a stack of the process now. */
static __always_inline bool stack_is_due(struct process *p, u64 now)
{
	u64 *last = counter(LAST_STACK);

	if (now < p->due || !last || now - *last < stack_spacing)
		return false;
	*last = now;
	p->due = now + stack_period / 2 + ((bpf_get_prandom_u32() >> 12) * stack_period >> 20);
	return true;
}

/* flush adds the last waits to the table. */
static __always_inline void flush(struct process *p, u32 pid)
{
	struct wait_key key = {
		.query = p->same_query, .started = p->started, .pid = pid,
		.event = p->same_event, .state = p->same_state,
	};
	struct wait_time first = {.ns = p->same_ns, .waits = p->same_waits, .delay = p->same_delay}, *w;

	if (!p->same_waits)
		return;
	p->same_ns = p->same_waits = p->same_delay = 0;
	w = bpf_map_lookup_elem(&wait_times, &key);
	if (!w) {
		if (bpf_map_update_elem(&wait_times, &key, &first, BPF_ANY))
			count(UNCOUNTED, 1);
		return;
	}
	w->ns += first.ns;
	w->waits += first.waits;
	w->delay += first.delay;
}

/* account adds a wait that has ended, and the part of it in which the process waited for a processor. */
static __always_inline void account(struct process *p, u32 pid, u64 ns, u64 delay)
{
	if (p->query != p->same_query || p->event != p->same_event || p->state != p->same_state) {
		flush(p, pid);
		p->same_query = p->query;
		p->same_event = p->event;
		p->same_state = p->state;
	}
	p->off += ns;
	p->same_ns += ns;
	p->same_delay += delay;
	p->same_waits++;
}

static __always_inline void send_head(struct head *h)
{
	if (bpf_ringbuf_output(&ring, h, sizeof(*h), BPF_RB_NO_WAKEUP))
		count(LOST, 1);
}

/* end_wait accounts for a wait, which took so long, and for so long of that time the process waited for a processor. */
static __always_inline void end_wait(struct process *p, struct task_struct *t, u64 ns, u64 delay, u64 now)
{
	struct head h = {};

	if (p->runnable || delay > ns)
		delay = ns; /* it did not sleep, or the scheduler counts a wait that was not seen, too */
	account(p, t->tgid, ns, delay);
	if (p->stack != p->number || p->number == 0)
		return;
	describe(&h, t, KIND_OFF_END, now);
	h.number = p->number;
	h.first = ns;
	h.second = delay;
	send_head(&h);
}

/* divide accounts for the wait before the present run, if that is still to be done. Otherwise it returns how long the
 * process has waited for processors since the last division. */
static __always_inline u64 divide(struct process *p, struct task_struct *t, u64 now)
{
	u64 all = run_delay(t), delay = all - p->delay;

	p->delay = all;
	if (!p->undivided)
		return delay;
	p->undivided = 0;
	end_wait(p, t, p->undivided_ns, delay, now);
	return 0;
}

/* catch_up accounts for a process that leaves a processor and was not seen to get it: before the programs were attached,
 * or because the kernel does not report every switch. The scheduler has counted how long it had the processor. */
static __always_inline void catch_up(struct process *p, struct task_struct *t, u64 delay, u64 now)
{
	u64 all = now - p->since, on = last_run(t);

	if (on > all)
		on = all;
	if (on < all)
		end_wait(p, t, all - on, delay, now);
	p->since = now - on;
}

/* read_entry brings entry_state and entry_query of the current process up to date. It returns false if the process has
 * no entry in pg_stat_activity or is changing it. Most of the entry's cache lines are not touched: the process has
 * many other things to keep in its cache. */
static __always_inline bool read_entry(struct process *p)
{
	u64 status = fetch_u64(status_pointer, NULL);
	u32 changes = 0;

	if (!status || !fetch(&changes, sizeof(changes), status, NULL) || (changes & 1))
		return false;
	if (changes && changes == p->entry_changes)
		return true;
	p->entry_changes = changes;
	p->entry_state = fetch_u32(status + state_offset, NULL);
	p->entry_query = fetch_u64(status + query_offset, NULL);
	return true;
}

/* leave notes that the current process leaves its processor. */
static __always_inline void leave(struct task_struct *t, bool preempted, u64 now)
{
	struct process *p;
	struct sample *s;
	u32 index = bpf_get_smp_processor_id(), pid = t->tgid;
	u64 delay;

	if (t->__state & TASK_DEAD) {
		bpf_map_delete_elem(&processes, &pid);
		return;
	}
	p = process_of(t);
	if (!p)
		return;
	delay = divide(p, t, now);
	if (!p->running || !p->exec)
		catch_up(p, t, delay, now);
	else if (field_exists(t->sched_info.last_arrival))
		p->clock = p->since - t->sched_info.last_arrival;
	p->on += now - p->since;
	p->since = now;
	p->running = 0;
	p->number++;
	p->runnable = preempted || t->__state == 0;
	p->query = p->state = p->event = 0;
	if (!t->mm)
		return;
	p->event = wait_event(NULL);
	if (read_entry(p)) {
		p->state = p->entry_state;
		p->query = p->entry_query;
	}
	p->without++;
	if (!stack_is_due(p, now))
		return;
	s = bpf_map_lookup_elem(&scratch, &index);
	if (!s || index >= processors)
		return;
	describe(&s->record.head, t, KIND_OFF, now);
	if (!copy_registers(s->record.registers, t))
		return;
	s->record.head.number = p->number;
	s->record.head.first = p->without;
	read_labels(&s->record.labels, NULL);
	if (p->runnable)
		s->record.labels.flags |= RUNNABLE;
	if (!send(s, copy_stack(s, t, NULL)))
		return;
	p->stack = p->number;
	p->without = 0;
}

/* enter notes that a process gets a processor. */
static __always_inline void enter(struct task_struct *t, u64 now)
{
	struct process *p = process_of(t);
	u64 ran;

	if (!p)
		return;
	if (p->running)
		divide(p, t, now);
	if (p->running && p->exec) { /* it was not seen to leave the processor */
		ran = t->se.sum_exec_runtime - p->exec;
		if (ran > now - p->since)
			ran = now - p->since;
		p->on += ran;
		p->since += ran;
		p->number++;
		p->event = p->state = p->query = p->runnable = 0;
	}
	p->undivided_ns = now - p->since;
	p->undivided = 1;
	p->since = now;
	p->running = 1;
	p->exec = t->se.sum_exec_runtime;
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	bool preempted = ctx[0], from = is_sampled(prev), to = is_sampled(next);
	u64 now;

	if (!from && !to)
		return 0;
	now = bpf_ktime_get_ns();
	if (now > until)
		return 0;
	if (from)
		leave(prev, preempted, now);
	if (to)
		enter(next, now);
	charge(now);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *t = (void *)ctx[0];
	u64 now = bpf_ktime_get_ns();
	struct head h = {};
	struct process *p;
	u32 pid = t->tgid;
	u64 delay;

	if (!is_child(t) || now > until)
		return 0;
	if (!is_sampled(t)) {
		bpf_map_delete_elem(&processes, &pid); /* it was one before it executed another program */
		return 0;
	}
	p = process_of(t);
	if (!p)
		return 0;
	delay = divide(p, t, now);
	if (!p->running)
		catch_up(p, t, delay, now);
	describe(&h, t, KIND_EXIT, now);
	h.first = p->on + (now - p->since);
	h.second = p->off;
	send_head(&h);
	flush(p, pid);
	bpf_map_delete_elem(&processes, &pid);
	return 0;
}

struct sleeper {
	u32 pid;
};

/* read_sleeper takes the stack of a process that sleeps since its last wait began. */
SEC("syscall")
int read_sleeper(struct sleeper *which)
{
	u32 pid = which->pid, index = processors;
	struct process *p = bpf_map_lookup_elem(&processes, &pid);
	struct sample *s = bpf_map_lookup_elem(&scratch, &index);
	struct task_struct *t;
	u64 switches, number, length;

	if (!p || !s || p->running)
		return -ENOENT;
	t = bpf_task_from_pid(pid);
	if (!t)
		return -ENOENT;
	number = p->number;
	switches = count_switches(t);
	if (!is_sampled(t) || !off_processor(t) || !t->mm || !copy_registers(s->record.registers, t))
		goto out;
	describe(&s->record.head, t, KIND_SLEEPER, bpf_ktime_get_ns());
	s->record.head.number = number;
	s->record.head.first = 1;
	read_labels(&s->record.labels, t);
	if (p->runnable)
		s->record.labels.flags |= RUNNABLE;
	length = copy_stack(s, t, t);
	if (!off_processor(t) || count_switches(t) != switches || p->number != number)
		goto out;
	p->stack = number; /* its end is reported */
	if (!send(s, length))
		p->stack = 0;
out:
	bpf_task_release(t);
	return 0;
}

enum { NOT_COUNTED = 1 };

/* note_delay notes how long a process has waited for processors, and since when it waits for one now. User space calls
 * it when the other programs have ended. It returns NOT_COUNTED if this kernel does not count that. */
SEC("syscall")
int note_delay(struct sleeper *which)
{
	u32 pid = which->pid;
	struct process *p = bpf_map_lookup_elem(&processes, &pid);
	struct task_struct *t;
	int result = 0;

	if (!p)
		return -ENOENT;
	t = bpf_task_from_pid(pid);
	if (!t)
		return -ENOENT;
	if (!field_exists(t->sched_info.last_queued))
		result = NOT_COUNTED;
	else if (p->started == 0 || p->started == t->start_boottime) {
		p->noted_delay = run_delay(t);
		p->noted_queued = t->sched_info.last_queued;
		p->noted = 1;
	}
	bpf_task_release(t);
	return result;
}
