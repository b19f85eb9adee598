// Package host limits and protects the program itself. It does not know what the program does.
//
// Processors (processors.go): a program that mostly waits gets one processor while it has only one task. Otherwise the
// Go scheduler searches for work on a second processor at every wake-up. While a process is stopped and copied, this
// search slows the copy, because two logical processors often share one core. The pause is then half as long again.
// With two or more tasks the program uses all processors. Without a call of Frugal nothing changes.
//
// Memory (resident.go): LockMemory keeps the program's own code in memory. The kernel drops the pages of a service that
// is rarely used. The service would have to read them again from a disk that may be the cause of the server's trouble.
//
// System calls (fence.go): RaiseFence permanently forbids this process the system calls with which an attacker could do
// harm. Such calls change, slow or end another process, start a process or a program, make code, enter a namespace,
// change the host, or load code into the kernel. The ptrace requests that a capture needs stay allowed: none of them
// writes to the target. RaiseFence uses a seccomp filter (seccomp(2)) for all threads. A refused call fails with EPERM.
// A call that is newer than this package fails with ENOSYS, as on an older kernel. Landlock is unsuitable for a tracer,
// because it forbids tracing processes outside its domain.
//
// Panics (shield.go): Catch keeps a panic in the work for one request from ending the program, which serves others.
// Every goroutine that such work starts must run inside Catch itself: a recover in another goroutine has no effect.
// AbortOnCrash (crash.go) makes any other crash end the program by SIGABRT, without a core file.
//
// Wake-ups (pulse.go): AlignedDelay aligns the periodic work of an idle program. Tasks that are due at about the same
// time run at the same moment, so that they wake the program once. Each program has different moments, so that the
// workers of one host do not all query their servers at the same time.
package host
