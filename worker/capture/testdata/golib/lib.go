// Library golib is Go code for C programs: goWait goes down some calls and sleeps in C, goSpin is busy in Go and in C.
// pg.c makes functions of PostgreSQL of them.
package main

/*
#include <unistd.h>

static volatile int counted;
static int cWork(int n) { for (int i = 0; i < 1000; i++) counted += n; return n; }
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

//export goSpin
func goSpin(n C.int) C.int { return C.int(spin(int(n))) }

var kept []byte

//go:noinline
func spin(n int) int {
	kept = make([]byte, 40<<10+n)
	if n == 0 {
		return int(C.cWork(1))
	}
	return spin(n-1) + 1
}

func main() {}
