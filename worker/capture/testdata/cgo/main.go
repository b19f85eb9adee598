// Command cgo goes from Go to C and back three times, and reads its standard input in C, on its first thread.
package main

/*
#include <unistd.h>
extern int goDescend(int n);
static int cRead(int n) { char b; volatile int r = read(0, &b, 1); return r + n; }
static int cDescend(int n) { volatile int r = goDescend(n - 1); return r + 1; }
*/
import "C"

import "runtime"

//export goDescend
func goDescend(n C.int) C.int { return C.int(descend(int(n))) }

//go:noinline
func descend(n int) int {
	if n == 0 {
		return int(C.cRead(1)) + 1
	}
	return int(C.cDescend(C.int(n))) + 1
}

func init() { runtime.LockOSThread() }

func main() { println(descend(3)) }
