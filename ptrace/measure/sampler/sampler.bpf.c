// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
//go:build ignore

/*
 * sampler.bpf.c: samples registers and user stacks of threads without stopping them.
 *
 * Each processor has a timer. When the timer fires on_timer samples the thread that it has interrupted, if that is a
 * target: its user stack is mapped there. A target that is off this processor cannot be read in an interrupt, because
 * its memory belongs to another address space. If it has not run since its last sample, that sample counts again.
 * Otherwise on_timer marks it as wanted, and wakes the thread that calls read_wanted on this processor: while that
 * thread has the processor, the target is off it.
 *
 * read_wanted copies registers and stack of a thread that is off its processor. It checks before and after the copy
 * that the thread is off the processor, and how often it has left one. If both are equal the thread has not run in
 * between, and the copy is of one moment.
 *
 * All that user space reads lies in mapped memory: struct cpu_state, and an area for stacks. Both programs add samples
 * there. on_timer can interrupt read_wanted, so each takes room by an atomic operation.
 */
#include "registers.h"
#include "scheduler.h"

char LICENSE[] SEC("license") = "GPL";

enum {
	MAX_TARGETS = 64,
	MAX_SAMPLES = 1024,
	MAX_STACK = 256 << 10,	/* bytes of one stack */
	PERIOD_BITS = 22,	/* a period is less than 1 << (64 - PERIOD_BITS) ns */
};

/* What came of a sample. */
enum outcome {
	OUTCOME_NONE,		/* not a sample */
	OUTCOME_READ,		/* registers and stack */
	OUTCOME_NO_STACK,	/* registers only: the stack is not readable */
};

/* A thread to sample. User space writes the first four members. Addresses and lengths are in bytes. */
struct sample_target {
	u64 stack_end;	/* address of the first byte above the stack */
	u32 tid;		/* in the initial PID namespace; 0: no thread */
	u32 max_stack;
	u32 red_zone;		/* bytes below the stack pointer that belong to the stack */

	u32 wanted;		/* how many looks wait for read_wanted to read it */
	u32 gone;		/* it has exited */
	u32 last;		/* its last sample, plus 1; 0: none, or it may have run since */
	u64 started;		/* these three: when the last sample was taken */
	u64 switches;
	u32 state;
	u32 wanted_state;	/* state and switches at the looks that wait */
	u64 wanted_switches;
};

/* A sample of a thread. */
struct stack_sample {
	u64 registers[NUM_REGISTERS];	/* struct pt_regs; members that no unwinder needs are 0 */
	u64 started;		/* when the thread started, in ns since boot */
	u64 stack_end;
	u64 stack_start;	/* address of the first byte of the copy */
	u64 stack_length;	/* of the copy */
	u64 stack_at;		/* offset of the copy in the stack area */
	u32 state;		/* __state of struct task_struct; 0: it ran or could run */
	u32 target;		/* index of the target */
	u32 times;		/* how many timer interrupts found the thread like this */
	u32 outcome;		/* enum outcome */
};

/* State of one processor. User space writes the first five members while the timer is stopped. */
struct cpu_state {
	u64 period;		/* of the timer, in ns; 0: stopped */
	u64 first;		/* ns until the timer fires for the first time */
	u64 until;		/* CLOCK_MONOTONIC, in ns: the timer stops itself then */
	u32 number;
	u32 num_targets;

	u64 stack_used;	/* bytes of the stack area */
	u32 num_samples;	/* can exceed MAX_SAMPLES */
	u32 missed;		/* looks that found a thread, and did not sample it */
	struct sample_target targets[MAX_TARGETS];
	struct stack_sample samples[MAX_SAMPLES];
};

struct sampler_clock {
	struct bpf_timer timer;
};

/* The number of bytes in each stack area. The area is larger than any stack, so that one always fits. */
const volatile u64 stack_area = MAX_STACK + MAX_STACK / 4;

/* User space sets the number of entries of the next four maps: one for each processor. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_state);
} processors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, MAX_STACK + MAX_STACK / 4); /* user space sets it: stack_area */
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sampler_clock);
} clocks SEC(".maps");

/* A ring of which only the wakeup matters: user space polls it. */
struct wakeup {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} wakeup SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct wakeup);
} wakeups SEC(".maps");

/* unchanged reports whether a thread has not run since its last sample, and was not woken up. */
static __always_inline bool unchanged(struct sample_target *t, struct task_struct *task)
{
	return t->last != 0 && t->switches == count_switches(task) && t->state == task->__state &&
	       t->started == task->start_boottime;
}

/* stack_of writes which part of the stack is copied. It returns the length, MAX_STACK at most. */
static __always_inline u64 stack_of(struct stack_sample *s, struct sample_target *t)
{
	u64 length;

	s->stack_end = t->stack_end;
	s->stack_start = s->registers[WORD_SP] - t->red_zone;
	length = s->stack_end - s->stack_start;
	if (length > t->max_stack)
		length = t->max_stack;
	if (length > MAX_STACK)
		length = MAX_STACK;
	s->stack_length = length;
	return length;
}

/* new_sample takes room for a sample of a thread; NULL if there is none. */
static __always_inline struct stack_sample *new_sample(struct cpu_state *p, u32 target, struct task_struct *task,
						       u32 *number)
{
	u32 n = __sync_fetch_and_add(&p->num_samples, 1);
	struct stack_sample *s;

	if (n >= MAX_SAMPLES)
		return NULL;
	*number = n;
	s = &p->samples[n];
	s->outcome = OUTCOME_NONE;
	s->started = task->start_boottime;
	s->target = target;
	s->times = 1;
	return s;
}

/* new_stack takes room for a stack in the area; NULL if there is none. */
static __always_inline void *new_stack(struct cpu_state *p, struct stack_sample *s, u32 index, u64 length)
{
	u64 at = __sync_fetch_and_add(&p->stack_used, length);
	char *area = bpf_map_lookup_elem(&stacks, &index);

	s->stack_at = at;
	if (!area || at > stack_area - MAX_STACK)
		return NULL;
	return area + at;
}

/* give_back returns the room of the stack that was taken last. If it was not the last its room is lost until Reset. */
static __always_inline void give_back(struct cpu_state *p, struct stack_sample *s)
{
	__sync_val_compare_and_swap(&p->stack_used, s->stack_at + s->stack_length, s->stack_at);
}

static __always_inline bool nearly_full(struct cpu_state *p)
{
	return p->num_samples >= MAX_SAMPLES || p->stack_used > stack_area - MAX_STACK;
}

/*
 * want has read_wanted read a thread. Earlier looks that still wait are of the same moment, unless the thread has run
 * since.
 */
static __always_inline void want(struct cpu_state *p, struct sample_target *t, u64 switches, u32 state)
{
	t->last = 0;
	if (t->wanted_switches != switches || t->wanted_state != state) {
		__sync_fetch_and_add(&p->missed, t->wanted);
		t->wanted = 0;
		t->wanted_switches = switches;
		t->wanted_state = state;
	}
	t->wanted++;
}

/* sample_current samples the thread that the timer has interrupted. It returns whether user space has to do something. */
static __always_inline bool sample_current(struct cpu_state *p, u32 index, struct sample_target *t, u32 target)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 number = 0;
	struct stack_sample *s = new_sample(p, target, task, &number);
	u64 length;
	void *stack;

	t->last = 0; /* it runs */
	__sync_fetch_and_add(&p->missed, t->wanted);
	t->wanted = 0;
	if (!s)
		goto missed;
	s->state = 0; /* even if it is about to sleep */
	if (!copy_registers(s->registers, task))
		goto missed;
	length = stack_of(s, t);
	stack = new_stack(p, s, index, length);
	if (!stack)
		goto missed;
	if (bpf_probe_read_user(stack, length, (void *)s->stack_start)) {
		give_back(p, s);
		want(p, t, count_switches(task), 0); /* part of it may have to be fetched */
		return true;
	}
	s->outcome = OUTCOME_READ;
	return nearly_full(p);
missed:
	__sync_fetch_and_add(&p->missed, 1);
	return nearly_full(p);
}

/* look_at samples a target in a timer's interrupt, or marks it. It returns whether user space has to do something. */
__noinline int look_at(u32 index, u32 target, u32 current)
{
	struct cpu_state *p = bpf_map_lookup_elem(&processors, &index);
	struct task_struct *task;
	struct sample_target *t;
	bool wake = false;

	if (!p || target >= MAX_TARGETS)
		return 0;
	t = &p->targets[target];
	if (t->tid == 0 || t->gone)
		return 0;
	if (t->tid == current)
		return sample_current(p, index, t, target);
	task = bpf_task_from_pid(t->tid);
	if (!task) {
		t->gone = 1;
		return 1;
	}
	if (task->__state & TASK_DEAD) {
		t->gone = 1;
		wake = true;
	} else if (task->thread_info.cpu != p->number) {
		/* Another processor's timer looks at it. */
	} else if (unchanged(t, task)) {
		u32 last = t->last - 1;

		if (last < MAX_SAMPLES)
			p->samples[last].times++;
	} else {
		want(p, t, count_switches(task), task->__state);
		wake = true;
	}
	bpf_task_release(task);
	return wake;
}

static int on_timer(void *map, u32 *key, struct sampler_clock *c)
{
	u32 index = *key, current = bpf_get_current_pid_tgid();
	struct cpu_state *p = bpf_map_lookup_elem(&processors, &index);
	u64 period, nothing = 0;
	bool wake = false;
	void *ring;

	if (!p)
		return 0;
	period = p->period;
	if (period == 0 || bpf_ktime_get_ns() >= p->until)
		return 0;
	/* The period, more or less a half by chance. Set first: what follows does not lengthen it. */
	period = period / 2 + ((bpf_get_prandom_u32() >> (32 - PERIOD_BITS)) * period >> PERIOD_BITS);
	bpf_timer_start(&c->timer, period, BPF_F_TIMER_CPU_PIN);
	for (u32 i = 0; i < MAX_TARGETS && i < p->num_targets; i++)
		wake |= look_at(index, i, current) != 0;
	ring = bpf_map_lookup_elem(&wakeups, &index);
	if (wake && ring)
		bpf_ringbuf_output(ring, &nothing, sizeof(nothing), BPF_RB_FORCE_WAKEUP);
	return 0;
}

struct cpu_request {
	u32 index; /* of a processor, in the maps */
};

SEC("syscall")
int start_timer(struct cpu_request *r)
{
	u32 index = r->index;
	struct cpu_state *p = bpf_map_lookup_elem(&processors, &index);
	struct sampler_clock *c = bpf_map_lookup_elem(&clocks, &index);
	int err;

	if (!p || !c)
		return -ENOENT;
	err = bpf_timer_init(&c->timer, &clocks, CLOCK_MONOTONIC);
	if (err && err != -EBUSY) /* EBUSY: it has been initialized before */
		return err;
	err = bpf_timer_set_callback(&c->timer, on_timer);
	if (err)
		return err;
	return bpf_timer_start(&c->timer, p->first, BPF_F_TIMER_CPU_PIN);
}

SEC("syscall")
int stop_timer(struct cpu_request *r)
{
	u32 index = r->index;
	struct sampler_clock *c = bpf_map_lookup_elem(&clocks, &index);
	int was;

	if (!c)
		return -ENOENT;
	was = bpf_timer_cancel(&c->timer);
	return was < 0 ? was : 0;
}

/* read_task samples a thread that is off its processor, for some looks. */
static __always_inline void read_task(struct cpu_state *p, u32 index, u32 target, struct task_struct *task, u32 looks)
{
	struct sample_target *t = &p->targets[target];
	struct stack_sample *s;
	u32 number = 0;
	u64 switches, length;
	bool has_run;
	void *stack;
	long failed;

	switches = count_switches(task);
	if (task->thread_info.cpu != p->number || !off_processor(task))
		goto missed;
	s = new_sample(p, target, task, &number);
	if (!s)
		goto missed;
	s->state = task->__state;
	if (!copy_registers(s->registers, task))
		goto missed;
	length = stack_of(s, t);
	stack = new_stack(p, s, index, length);
	if (!stack)
		goto missed;
	failed = bpf_copy_from_user_task(stack, length, (void *)s->stack_start, task, 0);
	has_run = !off_processor(task) || count_switches(task) != switches;
	if (failed || has_run)
		give_back(p, s);
	if (has_run)
		goto missed;
	s->outcome = failed ? OUTCOME_NO_STACK : OUTCOME_READ;
	if (t->wanted_switches == switches && t->wanted_state == s->state)
		s->times = looks;
	else
		__sync_fetch_and_add(&p->missed, looks - 1); /* it has run since: this is of the last look */
	t->switches = switches;
	t->started = s->started;
	t->state = s->state;
	t->last = number + 1;
	return;
missed:
	__sync_fetch_and_add(&p->missed, looks);
}

/* read_target reads a target if it is wanted. */
__noinline int read_target(u32 index, u32 target)
{
	struct cpu_state *p = bpf_map_lookup_elem(&processors, &index);
	struct task_struct *task;
	struct sample_target *t;
	u32 looks;

	if (!p || target >= MAX_TARGETS)
		return 0;
	t = &p->targets[target];
	looks = t->wanted;
	if (!looks)
		return 0;
	t->wanted = 0;
	task = bpf_task_from_pid(t->tid);
	if (!task) {
		t->gone = 1;
		return 0;
	}
	read_task(p, index, target, task, looks);
	bpf_task_release(task);
	return 0;
}

SEC("syscall")
int read_wanted(struct cpu_request *r)
{
	u32 index = r->index;
	struct cpu_state *p = bpf_map_lookup_elem(&processors, &index);

	if (!p)
		return -ENOENT;
	for (u32 i = 0; i < MAX_TARGETS && i < p->num_targets; i++)
		read_target(index, i);
	return 0;
}
