// Library golib is Go code for C programs: goWait goes down some calls and sleeps in C. pg.c makes a function of
// PostgreSQL of it.
package main

/*
#include <unistd.h>

static int cSleep(int n) { volatile int r = sleep(n); return r; }
*/
import "C"

//export goWait
func goWait(n C.int) C.int { return C.int(descend(int(n))) }

//go:noinline
func descend(n int) int {
	if n == 0 {
		return int(C.cSleep(60))
	}
	return descend(n-1) + 1
}

func main() {}
