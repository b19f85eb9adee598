/* The main thread exits, and another one waits for ever. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static __attribute__((noinline)) void *wait_for_ever(void *unused) {
	(void)unused;
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}

int main(void) {
	pthread_t thread;
	if (pthread_create(&thread, NULL, wait_for_ever, NULL) != 0)
		return 1;
	pthread_exit(NULL);
}
