// Command cgobusy goes from Go to C and back three times, over and over, on its first thread, and is busy at each
// level. Which function calls which is fixed: descend, cDescend, goDescend in turn, then descend, cWork.
package main

/*
static volatile int counted;
extern int goDescend(int n);
static int cWork(int n) { for (int i = 0; i < 300; i++) counted += n; return n; }
static int cDescend(int n) { volatile int r = cWork(n); r += goDescend(n - 1); return cWork(r); }
*/
import "C"

import (
	"runtime"
	"time"
)

//export goDescend
func goDescend(n C.int) C.int { return C.int(descend(int(n))) }

var (
	kept [4][]byte
	when time.Time
)

//go:noinline
func work(n int) {
	var a [200]int
	for i := range a {
		a[i] = i * n
	}
	kept[n] = make([]byte, 40<<10+a[n])
	when = time.Now()
}

//go:noinline
func descend(n int) int {
	work(n)
	if n == 0 {
		return int(C.cWork(1)) + 1
	}
	return int(C.cDescend(C.int(n))) + 1
}

func init() { runtime.LockOSThread() }

func main() {
	for {
		descend(3)
	}
}
