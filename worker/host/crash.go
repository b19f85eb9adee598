package host

import (
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// AbortOnCrash makes this process end by SIGABRT after a panic, without memory, and at SIGQUIT. Go's runtime would end it with
// status 2, which service managers take for wrong options: they would not start the worker again. The process
// writes no core file, because this file would have the worker's secrets and texts of the server.
func AbortOnCrash() {
	signal.Reset(syscall.SIGQUIT) // a worker that does not react must end, with a dump of its goroutines
	debug.SetTraceback("crash")
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &limit) == nil {
		// With 0, the kernel would still start a program for core files (core(5)). With 1, it makes none in any way.
		limit.Max = min(limit.Max, 1)
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &limit)
	}
}
