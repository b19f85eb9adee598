/* What the programs below ptrace/bpf call in the kernel, by the numbers of its stable interface (bpf-helpers(7)), and
 * the sections that the loader knows. Add a helper when a program needs it. */
#ifndef PGSB_HELPERS_H
#define PGSB_HELPERS_H

#include "vmlinux.h"

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

/* barrier keeps the compiler from moving loads and stores across it. */
#define barrier() asm volatile("" ::: "memory")

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_probe_read_user)(void *dst, u32 size, const void *address) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *dst, u32 size, const void *address) = (void *)113;
static void *(*const bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *record, u64 flags) = (void *)132;
static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;

#endif
