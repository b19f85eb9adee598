// SPDX-License-Identifier: GPL-2.0-only OR PostgreSQL
/* What the programs (*.bpf.c) call in the kernel, by the numbers of its stable interface (bpf-helpers(7)), and
 * the sections that the loader knows. Add a helper when a program needs it. */
#ifndef PGSB_HELPERS_H
#define PGSB_HELPERS_H

#include "vmlinux.h"

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]
#define __noinline __attribute__((noinline))
#define __ksym __attribute__((section(".ksyms")))

/* field_size is the size in bytes that the running kernel gives a field. */
#define field_size(field) __builtin_preserve_field_info(field, 1)

/* field_exists is 1 if the running kernel has a field, otherwise 0. */
#define field_exists(field) __builtin_preserve_field_info(field, 2)

/* barrier keeps the compiler from moving loads and stores across it. */
#define barrier() asm volatile("" ::: "memory")

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static u64 (*const bpf_get_current_uid_gid)(void) = (void *)15;
static long (*const bpf_probe_read_user)(void *dst, u32 size, const void *address) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *dst, u32 size, const void *address) = (void *)113;
static long (*const bpf_probe_read_user_str)(void *dst, u32 size, const void *address) = (void *)114;
static long (*const bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static void *(*const bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *record, u64 flags) = (void *)132;
static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_timer_init)(struct bpf_timer *timer, void *map, u64 flags) = (void *)169;
static long (*const bpf_timer_set_callback)(struct bpf_timer *timer, void *callback) = (void *)170;
static long (*const bpf_timer_start)(struct bpf_timer *timer, u64 nsecs, u64 flags) = (void *)171;
static long (*const bpf_timer_cancel)(struct bpf_timer *timer) = (void *)172;
static u64 (*const bpf_get_attach_cookie)(void *ctx) = (void *)174;
static long (*const bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*const bpf_loop)(u32 times, void *callback, void *context, u64 flags) = (void *)181;
static long (*const bpf_copy_from_user_task)(void *dst, u32 size, const void *address, struct task_struct *task,
					     u64 flags) = (void *)191;

/* Functions of the kernel that the loader finds by name. */
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *task) __ksym;
extern u64 *bpf_session_cookie(void) __ksym;
extern bool bpf_session_is_return(void) __ksym;

#endif
