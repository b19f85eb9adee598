// notice: makes one system call that blocks for about a third of a second, and says how that ended: result, errno, and for
// how many milliseconds it lasted. First argument: which call. Those without a time-out of their own are ended by a
// child process.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { lasting = 300 };	// ms

static struct timespec third = {0, lasting * 1000000L};
static int ends[2];	// a pipe or pair of sockets
static char watched[] = "/tmp/notice.XXXXXX";	// a file
static char much[1 << 20];	// more than a pipe takes
static int sem = -1, queue = -1, file = -1;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

// later forks: the parent goes on at once; the child waits, and returns true to do what ends the parent's call.
static int later(void)
{
	if (fork() != 0)
		return 0;
	close(1);
	usleep(lasting * 1000);
	return 1;
}

static void prepare(const char *what)
{
	char c = 0;
	if (!strncmp(what, "sem", 3))
		sem = semget(IPC_PRIVATE, 1, 0600);
	if (!strncmp(what, "msg", 3))
		queue = msgget(IPC_PRIVATE, 0600);
	if (!strcmp(what, "recv-timeout")) {
		struct timeval t = {0, lasting * 1000};
		socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
		setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	} else if (!strcmp(what, "recv")) {
		socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	} else if (pipe(ends)) {
		exit(2);
	}
	if (!strcmp(what, "inotify")) {
		file = mkstemp(watched);
		if (later()) {
			fchmod(file, 0640);
			unlink(watched);
			_exit(0);
		}
		return;
	}
	if (!strcmp(what, "write")) {
		if (later()) {
			close(ends[1]);
			while (read(ends[0], much, sizeof much) > 0)
				;
			_exit(0);
		}
		return;
	}
	if (!strcmp(what, "fcntl-lock")) {
		struct flock l = {.l_type = F_WRLCK};
		char name[] = "/tmp/notice.XXXXXX";
		int ready[2];
		file = mkstemp(name);
		unlink(name);
		if (pipe(ready))
			exit(2);
		if (fork() == 0) {
			close(1);
			fcntl(file, F_SETLK, &l);
			if (write(ready[1], &c, 1) != 1)
				_exit(2);
			usleep(lasting * 1000);
			_exit(0);
		}
		if (read(ready[0], &c, 1) != 1)
			exit(2);
		return;
	}
	if ((!strcmp(what, "semop") || !strcmp(what, "msgrcv") || !strcmp(what, "read") || !strcmp(what, "recv") ||
	     !strcmp(what, "waitpid")) && later()) {
		struct sembuf up = {0, 1, 0};
		struct { long type; char text[1]; } m = {1, "x"};
		if (sem >= 0)
			semop(sem, &up, 1);
		if (queue >= 0)
			msgsnd(queue, &m, 1, 0);
		if (write(ends[1], &c, 1) != 1)
			_exit(2);
		_exit(0);
	}
}

static long call(const char *what)
{
	char buf[64];
	struct timespec until, *t = &third;
	struct epoll_event event;
	struct sembuf down = {0, -1, 0};
	struct pollfd p = {ends[0], POLLIN, 0};
	static int word;
	if (!strcmp(what, "epoll_wait"))
		return epoll_wait(epoll_create1(0), &event, 1, lasting);
	if (!strcmp(what, "epoll_pwait"))
		return epoll_pwait(epoll_create1(0), &event, 1, lasting, NULL);
	if (!strcmp(what, "ppoll"))
		return ppoll(&p, 1, t, NULL);
	if (!strcmp(what, "pselect"))
		return pselect(0, NULL, NULL, NULL, t, NULL);
	if (!strcmp(what, "inotify")) { // nothing happens to be told: a child ends it
		int fd = inotify_init1(0);
		inotify_add_watch(fd, watched, IN_ATTRIB);
		char events[4096];
		return read(fd, events, sizeof events) > 0 ? 0 : -1;
	}
	if (!strcmp(what, "poll"))
		return poll(&p, 1, lasting);
	if (!strcmp(what, "select"))
		return select(0, NULL, NULL, NULL, &(struct timeval){0, lasting * 1000});
	if (!strcmp(what, "nanosleep"))
		return nanosleep(t, NULL);
	if (!strcmp(what, "clock_nanosleep")) {
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += (until.tv_nsec + t->tv_nsec) / 1000000000L;
		until.tv_nsec = (until.tv_nsec + t->tv_nsec) % 1000000000L;
		errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		return errno ? -1 : 0;
	}
	if (!strcmp(what, "semop"))
		return semop(sem, &down, 1);
	if (!strcmp(what, "semtimedop"))
		return semtimedop(sem, &down, 1, t);
	if (!strcmp(what, "msgrcv"))
		return msgrcv(queue, buf, 1, 0, 0);
	if (!strcmp(what, "futex"))
		return syscall(SYS_futex, &word, FUTEX_WAIT, 0, t, NULL, 0);
	if (!strcmp(what, "read"))
		return read(ends[0], buf, 1);
	if (!strcmp(what, "write"))
		return write(ends[1], much, sizeof much);
	if (!strncmp(what, "recv", 4))
		return recv(ends[0], buf, 1, 0);
	if (!strcmp(what, "waitpid"))
		return waitpid(-1, NULL, 0) > 0 ? 0 : -1;
	if (!strcmp(what, "fcntl-lock")) {
		struct flock l = {.l_type = F_WRLCK};
		return fcntl(file, F_SETLKW, &l);
	}
	if (!strcmp(what, "timerfd")) {
		int fd = timerfd_create(CLOCK_MONOTONIC, 0);
		timerfd_settime(fd, 0, &(struct itimerspec){.it_value = *t}, NULL);
		return read(fd, buf, 8);
	}
	if (!strcmp(what, "sigtimedwait")) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		sigprocmask(SIG_BLOCK, &set, NULL);
		return sigtimedwait(&set, NULL, t);
	}
	if (!strcmp(what, "io_getevents")) {
		aio_context_t ctx = 0;
		struct io_event e;
		if (syscall(SYS_io_setup, 1, &ctx))
			exit(4);
		return syscall(SYS_io_getevents, ctx, 1, 1, &e, t);
	}
	if (!strcmp(what, "io_uring_enter")) {
		struct io_uring_params p = {0};
		struct __kernel_timespec until = {0, t->tv_nsec};
		struct io_uring_getevents_arg arg = {.ts = (unsigned long) &until};
		int ring = syscall(SYS_io_uring_setup, 1, &p);
		if (ring < 0)
			exit(4);
		return syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof(arg));
	}
	exit(5);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	prepare(what);
	puts("ready");
	fflush(stdout);
	double begin = now();
	errno = 0;
	long result = call(what);
	int error = errno;
	printf("%ld %d %.0f\n", result < 0 ? -1 : result, result < 0 ? error : 0, now() - begin);
	if (sem >= 0)
		semctl(sem, 0, IPC_RMID);
	if (queue >= 0)
		msgctl(queue, IPC_RMID, NULL);
	return 0;
}
