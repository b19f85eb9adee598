/* A program without a C library whose stack is known: _start, start_c, outer, middle, leaf (or tail); a signal there;
 * the signal trampoline, on_signal, three times deeper, and crash, where it ends with a core. scripts/cores.sh builds it
 * with different flags for every architecture. */

#ifndef SIGINFO
#define SIGINFO 4 /* SA_SIGINFO; 0 gives the old frame where there are two */
#endif
#define SIGSEGV 11

static long syscall4(long n, long a, long b, long c, long d);

#if defined(__x86_64__)
#define NR_sigaction 13
#define NR_sigaltstack 131
#define RESTORER 0x04000000
extern void restorer(void);
#define RESTORE restorer
__asm__(".text\n.globl _start\n.type _start,@function\n_start:\n.cfi_startproc\n.cfi_undefined rip\n"
	"xor %ebp,%ebp\nand $-16,%rsp\ncall start_c\nhlt\n.cfi_endproc\n.size _start,.-_start\n"
	/* Like musl's: no call frame information. */
	"nop\n.type restorer,@function\nrestorer:\nmov $15,%rax\nsyscall\n.size restorer,.-restorer\n");
static long syscall4(long n, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return n;
}
#elif defined(__aarch64__)
#define NR_sigaction 134
#define NR_sigaltstack 132
__asm__(".text\n.globl _start\n.type _start,%function\n_start:\n.cfi_startproc\n.cfi_undefined x30\n"
	"mov x29,#0\nmov x30,#0\nbl start_c\nbrk #1\n.cfi_endproc\n.size _start,.-_start\n");
static long syscall4(long n, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
		      x3 __asm__("x3") = d;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#elif defined(__riscv)
#define NR_sigaction 134
#define NR_sigaltstack 132
__asm__(".text\n.globl _start\n.type _start,@function\n_start:\n.cfi_startproc\n.cfi_undefined ra\n"
	".option push\n.option norelax\nla gp,__global_pointer$\n.option pop\n"
	"li s0,0\nli ra,0\ncall start_c\nebreak\n.cfi_endproc\n.size _start,.-_start\n");
static long syscall4(long n, long a, long b, long c, long d)
{
	register long a7 __asm__("a7") = n, a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c,
		      a3 __asm__("a3") = d;
	__asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3) : "memory");
	return a0;
}
#elif defined(__powerpc64__)
#define NR_sigaction 173
#define NR_sigaltstack 185
__asm__(".text\n.globl _start\n.type _start,@function\n_start:\n.cfi_startproc\n.cfi_undefined lr\n"
	"addis 2,12,.TOC.-_start@ha\naddi 2,2,.TOC.-_start@l\n.localentry _start,.-_start\n"
	"li 0,0\nmtlr 0\nclrrdi 1,1,4\naddi 1,1,-128\nstd 0,0(1)\nbl start_c\nnop\ntrap\n"
	".cfi_endproc\n.size _start,.-_start\n");
static long syscall4(long n, long a, long b, long c, long d)
{
	register long r0 __asm__("r0") = n, r3 __asm__("r3") = a, r4 __asm__("r4") = b, r5 __asm__("r5") = c,
		      r6 __asm__("r6") = d;
	__asm__ volatile("sc" : "+r"(r0), "+r"(r3), "+r"(r4), "+r"(r5), "+r"(r6) : : "memory", "cr0", "ctr");
	return r3;
}
#elif defined(__s390x__)
#define NR_sigaction 174
#define NR_sigaltstack 186
__asm__(".text\n.globl _start\n.type _start,@function\n_start:\n.cfi_startproc\n.cfi_undefined r14\n"
	"aghi %r15,-160\nxc 0(8,%r15),0(%r15)\nbrasl %r14,start_c\nj .+2\n.cfi_endproc\n.size _start,.-_start\n");
static long syscall4(long n, long a, long b, long c, long d)
{
	register long r1 __asm__("1") = n, r2 __asm__("2") = a, r3 __asm__("3") = b, r4 __asm__("4") = c,
		      r5 __asm__("5") = d;
	__asm__ volatile("svc 0" : "+d"(r2) : "d"(r1), "d"(r3), "d"(r4), "d"(r5) : "memory", "cc");
	return r2;
}
#endif
#ifndef RESTORER
#define RESTORER 0
#define RESTORE 0
#endif

#define NOINLINE __attribute__((noinline, noclone))

volatile long *nowhere = (long *)8;
volatile long depth, sink;

/* A leaf that faults, with its return address in the link register where there is one. With SPIN, the second time it
 * does not end in a core, but stays there. */
#ifdef SPIN
NOINLINE long leaf(volatile long *where)
{
	while (!where && depth >= 0)
		sink++;
	return *where + 1;
}
#define CRASH ((volatile long *)0)
#else
NOINLINE long leaf(volatile long *where) { return *where + 1; }
#define CRASH nowhere
#endif

NOINLINE void crash(void) { sink = leaf(CRASH) + sink; }

NOINLINE void deeper(int n)
{
	volatile char room[40];
	room[n] = (char)n;
	if (n > 0)
		deeper(n - 1);
	else
		crash();
	depth += room[n];
}

NOINLINE void on_signal(int sig)
{
	deeper(3);
	sink = sig;
}

/* Uses enough registers across calls that callee-saved ones are in use, and room that the compiler cannot foresee. */
NOINLINE long middle(long a, long b, long c, volatile long *where)
{
	long x = sink, y = depth;
#ifdef DYNAMIC
	volatile char room[a * 16 + 8];
	room[a] = (char)b;
	x += room[a];
#endif
	long r = leaf(where);
	return r + a * x + b * y + c;
}

NOINLINE long outer(volatile long *where)
{
	long r = middle(3, 4, 5, where);
	return r + sink;
}

static char alternate[32768] __attribute__((aligned(16)));

void start_c(void)
{
	void *handler = (void *)on_signal;
	__asm__("" : "+r"(handler)); /* no relocations: nobody applies them */
	struct { void *handler; unsigned long flags; void *restorer; unsigned long mask[2]; } act = {
		handler, SIGINFO | RESTORER, (void *)RESTORE, {0, 0},
	};
#ifdef ALTSTACK
	struct { void *sp; long flags; unsigned long size; } st = { alternate, 0, sizeof alternate };
	act.flags |= 0x08000000;
	syscall4(NR_sigaltstack, (long)&st, 0, 0, 0);
#endif
	(void)alternate;
#ifdef __riscv
	/* This kernel has no restorer: the mask follows the flags. */
	unsigned long plain[3] = { (unsigned long)act.handler, act.flags, 0 };
	syscall4(NR_sigaction, SIGSEGV, (long)plain, 0, 8);
#else
	syscall4(NR_sigaction, SIGSEGV, (long)&act, 0, 8);
#endif
	outer(nowhere);
	for (;;)
		sink++;
}
