// target: the processes that the tests of package ptrace capture. First argument: what to be. Every one of them
// writes a line to standard output when it is so.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long counter;

static void ready(void) { puts("ready"); fflush(stdout); }

static volatile int stay = 1;

static void rest(void) { while (stay) pause(); }

static void spin(void) { for (;;) counter++; }

static int named;	// threads that have their name

static void *thread(void *arg)
{
	char name[16];
	snprintf(name, sizeof name, "t%ld", (long)arg);
	prctl(PR_SET_NAME, name);
	__atomic_add_fetch(&named, 1, __ATOMIC_RELEASE);
	if ((long)arg % 2)
		rest();
	struct timespec nap = {0, 2000000};
	for (;;) {
		for (int i = 0; i < 100000; i++)
			counter++;
		nanosleep(&nap, NULL);
	}
	return NULL;
}

static void threads(int n)
{
	pthread_t t;
	for (long i = 0; i < n; i++)
		if (pthread_create(&t, NULL, thread, (void *)i))
			exit(3);
	while (__atomic_load_n(&named, __ATOMIC_ACQUIRE) < n)
		sched_yield();
}

static void *deep_thread(void *arg)
{
	volatile char used[1 << 20];
	for (size_t i = 0; i < sizeof used; i += 4096)
		used[i] = 1;
	__atomic_add_fetch(&named, 1, __ATOMIC_RELEASE);
	rest();
	return arg;
}

// deep_threads starts threads that have each used 1 MiB of stack.
static void deep_threads(int n)
{
	pthread_t t;
	for (int i = 0; i < n; i++)
		if (pthread_create(&t, NULL, deep_thread, NULL))
			exit(3);
	while (__atomic_load_n(&named, __ATOMIC_ACQUIRE) < n)
		sched_yield();
}

static void *brief(void *arg) { return arg; }

// churn starts and ends threads all the time.
static void churn(void)
{
	for (;;) {
		pthread_t t[4];
		int n = 0;
		while (n < 4 && !pthread_create(&t[n], NULL, brief, NULL))
			n++;
		while (n > 0)
			pthread_join(t[--n], NULL);
	}
}

// storm: real-time signals queued by "send" must arrive all of them, once, in order.
static volatile sig_atomic_t received, disorder;

static void on_signal(int sig, siginfo_t *info, void *context)
{
	(void)sig; (void)context;
	if (info->si_code != SI_QUEUE || info->si_value.sival_int != received)
		disorder++;
	received++;
}

static void storm(int n)
{
	struct sigaction act = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
	struct timespec nap = {0, 100000};
	sigaction(SIGRTMIN, &act, NULL);
	ready();
	for (int idle = 0, seen = 0; received < n && idle < 100000; seen = received) {
		nanosleep(&nap, NULL);
		idle = seen == received ? idle + 1 : 0;
	}
	printf("received %d disorder %d\n", (int)received, (int)disorder);
}

static void sender(pid_t pid, int n, int nap)
{
	for (int i = 0; i < n; i++) {
		union sigval value = {.sival_int = i};
		while (sigqueue(pid, SIGRTMIN, value)) {
			if (errno != EAGAIN)
				exit(4);
			sched_yield();
		}
		if (nap && i % 20 == 0)
			usleep(nap);
	}
	ready();
}

// frozen: the parent of a vfork child sleeps uninterruptibly until the child goes.
static void frozen(void)
{
	printf("ready\n");
	fflush(stdout);
	if (vfork() == 0) {
		char c;
		if (read(0, &c, 1) >= 0) // until the test closes the pipe
			_exit(0);
		_exit(1);
	}
	rest();
}

static void tracer(pid_t pid)
{
	if (ptrace(PTRACE_SEIZE, pid, 0, 0))
		exit(5);
	ready();
	rest();
}

static char **arguments;

static void *again(void *arg)
{
	(void)arg;
	execv("/proc/self/exe", arguments);
	exit(6);
}

static void *resting(void *arg) { (void)arg; rest(); return NULL; }

// phoenix executes itself for ever, from another thread than the main one and than others that rest.
static void phoenix(char **argv, const char *rounds, const char *others)
{
	pthread_t t;
	char count[16];
	int left = atoi(rounds);
	if (left == 0)
		ready();
	snprintf(count, sizeof count, "%d", left + 1);
	arguments = (char *[]){argv[0], "phoenix", count, (char *)others, NULL};
	for (int i = 0; i < atoi(others); i++)
		if (pthread_create(&t, NULL, resting, NULL))
			exit(3);
	usleep(500);
	if (pthread_create(&t, NULL, again, NULL))
		exit(3);
	rest();
}

static void on_stack(int sig) { (void)sig; ready(); rest(); }

// elsewhere rests on a stack that is a piece of the heap.
static void elsewhere(void)
{
	stack_t stack = {.ss_size = 256 << 10, .ss_sp = malloc(256 << 10)};
	struct sigaction act = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
	sigaltstack(&stack, NULL);
	sigaction(SIGUSR1, &act, NULL);
	raise(SIGUSR1);
}

// missing rests on a stack whose upper pages are not there yet, and which nobody provides (userfaultfd(2)).
static void missing(void)
{
	long page = sysconf(_SC_PAGESIZE), size = 32 * page;
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	char *m = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t stack = {.ss_size = size, .ss_sp = m};
	struct sigaction act = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register all = {.range = {(unsigned long)m, 2 * size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	memset(m, 1, size);
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &all))
		return;
	sigaltstack(&stack, NULL);
	sigaction(SIGUSR1, &act, NULL);
	raise(SIGUSR1);
}

// removed rests on the process's own stack, of which a part in the middle has been taken away, which nobody provides.
static void removed(void)
{
	long page = sysconf(_SC_PAGESIZE), size = 32 * page;
	char *m = alloca(size), line[256];
	unsigned long low = 0, high = 0;
	struct uffdio_api api = {.api = UFFD_API};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	FILE *maps = fopen("/proc/self/maps", "r");
	memset(m, 1, size);
	while (fgets(line, sizeof line, maps) && !strstr(line, "[stack]"))
		;
	sscanf(line, "%lx-%lx", &low, &high);
	fclose(maps);
	struct uffdio_register all = {.range = {low, high - low}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	ready(); // and what it needs of the stack is there
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &all))
		return;
	madvise((char *)(((unsigned long)m + 2 * page - 1) & -page), size - 4 * page, MADV_DONTNEED);
	rest();
}

// nowhere has a stack pointer that points to nothing.
static void nowhere(unsigned long sp)
{
	ready();
#if defined __x86_64__
	__asm__ volatile("mov %0, %%rsp\n1: pause\n jmp 1b" ::"r"(sp));
#elif defined __aarch64__
	__asm__ volatile("mov sp, %0\n1: b 1b" ::"r"(sp));
#elif defined __powerpc64__
	__asm__ volatile("mr 1, %0\n1: b 1b" ::"r"(sp));
#elif defined __s390x__
	__asm__ volatile("lgr %%r15, %0\n1: j 1b" ::"r"(sp));
#elif defined __riscv
	__asm__ volatile("mv sp, %0\n1: j 1b" ::"r"(sp));
#endif
}

// ragged has its stack pointer at the start of a mapping with nothing before it, or in front of a hole.
static void ragged(void)
{
	long page = sysconf(_SC_PAGESIZE);
	char *m = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(m, page);
	nowhere((unsigned long)(m + page));
}

// zero spends its time in the kernel.
static void zero(void)
{
	size_t size = 64 << 20;
	char *m = malloc(size);
	int fd = open("/dev/zero", O_RDONLY);
	ready();
	while (read(fd, m, size) > 0)
		;
}

// heavy has much memory, which takes the kernel some time to take back when it ends.
static void heavy(size_t megabytes)
{
	char *volatile m = malloc(megabytes << 20); // else the compiler leaves out both
	memset(m, 1, megabytes << 20);
	ready();
	rest();
}

// restless runs and sleeps for about as long.
static void restless(void)
{
	struct timespec nap = {0, 50000}; // and the timer's slack of as much
	ready();
	for (;;) {
		for (int i = 0; i < 50000; i++)
			counter++;
		nanosleep(&nap, NULL);
	}
}

static int busy; // at the bottom of deep

static int deep(int kib)
{
	volatile char room[1024];
	room[0] = (char)kib;
	if (kib > 0)
		return deep(kib - 1) + room[0];
	ready();
	if (busy)
		spin();
	rest();
	return 0;
}

// grow goes down its stack and up again; each turn in a fresh process would be truer, one is enough.
static void grow(void)
{
	struct timespec nap = {0, 300000000};
	ready();
	nanosleep(&nap, NULL);
	deep(4000);
}

// listed has a list on its stack, as TestTrail describes it, and a variable that points to a text. The word of a node
// tells whether its number is odd, 1, or even, 2. While it is busy, it changes the texts: a node's number and its text
// go up together.
struct node { struct node *next; void *word, *argument; };
struct pointers { const char *unused, *text; };

static struct node *volatile head;
static const char *volatile variable;
static char over[8192];

static void listed(int n, int spinning)
{
	volatile struct pointers pointers = {NULL, NULL};
	volatile struct node node = {head, (void *)(n % 2 ? 1UL : 2UL), (void *)&pointers};
	char *text = malloc(64);
	snprintf(text, 64, "node %d", n);
	pointers.text = text;
	if (n == 3) // its argument lies elsewhere
		node.argument = text;
	if (n == 4) // points to nothing
		pointers.text = (char *)16;
	head = (struct node *)&node;
	if (n > 0) {
		listed(n - 1, spinning);
	} else {
		char *page = (char *)(((unsigned long)over + 4096) & ~4095UL);
		strcpy(page - 4, "across");
		variable = page - 4;
		printf("ready %p %p\n", (void *)&head, (void *)&variable);
		fflush(stdout);
		if (!spinning)
			rest();
		for (unsigned long i = 0;; i++) {
			text = i % 2 ? "odd" : "even";
			node.word = (void *)i;
			variable = text;
			pointers.text = text;
		}
	}
	node.word = NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 0;
	prctl(PR_SET_PTRACER, -1L);
	if (!strcmp(what, "sleep")) ready(), rest();
	if (!strcmp(what, "busy")) ready(), spin();
	if (!strcmp(what, "counting")) printf("ready %p\n", (void *)&counter), fflush(stdout), spin();
	if (!strcmp(what, "threads")) threads(n), ready(), rest();
	if (!strcmp(what, "busythreads")) threads(n), ready(), spin();
	if (!strcmp(what, "deepthreads")) deep_threads(n), ready(), rest();
	if (!strcmp(what, "leaderless")) threads(n), ready(), pthread_exit(NULL);
	if (!strcmp(what, "churn")) ready(), churn();
	if (!strcmp(what, "storm")) storm(n);
	if (!strcmp(what, "send")) sender(n, atoi(argv[3]), atoi(argv[4]));
	if (!strcmp(what, "frozen")) frozen();
	if (!strcmp(what, "tracer")) tracer(n);
	if (!strcmp(what, "phoenix")) phoenix(argv, argv[2], argc > 3 ? argv[3] : "0");
	if (!strcmp(what, "elsewhere")) elsewhere();
	if (!strcmp(what, "nowhere")) nowhere(16);
	if (!strcmp(what, "ragged")) ragged();
	if (!strcmp(what, "deep")) deep(n);
	if (!strcmp(what, "deepbusy")) busy = 1, deep(n);
	if (!strcmp(what, "zero")) zero();
	if (!strcmp(what, "missing")) missing();
	if (!strcmp(what, "removed")) removed();
	if (!strcmp(what, "heavy")) heavy(n);
	if (!strcmp(what, "restless")) restless();
	if (!strcmp(what, "grow")) grow();
	if (!strcmp(what, "undumpable")) prctl(PR_SET_DUMPABLE, 0), ready(), rest();
	if (!strcmp(what, "listed")) listed(n, argc > 3);
	if (!strcmp(what, "brief")) ready(), usleep(n);
	return 0;
}
