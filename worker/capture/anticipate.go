package capture

import (
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/worker/host/gomaxprocs"
)

// anticipate has what names the place where a process sleeps read, while its first capture is prepared: most processes
// sleep, and are still there when they are stopped. To expand the lines of a C library takes most of the first capture
// of a program that has seen no image yet.
func (c *Capturer) anticipate(key processKey) {
	gomaxprocs.Begin()
	defer gomaxprocs.End()
	defer survive(c.images.shared.tell)
	call, err := procfs.ReadSyscall(key.pid, key.pid)
	if err != nil || call.PC == 0 {
		return // the capture will say what is wrong
	}
	if !looks.begin(key.pid) {
		return
	}
	maps, err := procfs.Maps(key.pid)
	looks.end(key.pid)
	if err != nil {
		return
	}
	space := c.spaces.open(key.pid, key.startTime, maps)
	if _, where, ok := space.find(call.PC); ok && where.module != nil {
		where.module.readAhead(call.PC - where.bias)
	}
}
