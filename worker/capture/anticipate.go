package capture

import (
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/worker/host/gomaxprocs"
	"pg_stat_backtrace/worker/procmap"
	"pg_stat_backtrace/worker/symbolize"
)

// anticipate has what names the place where a process sleeps read, while its first capture is prepared: most processes
// sleep, and are still there when they are stopped. To expand the lines of a C library takes most of the first capture
// of a program that has seen no image yet.
func (c *Capturer) anticipate(key procmap.ProcessKey) {
	gomaxprocs.Begin()
	defer gomaxprocs.End()
	defer symbolize.Survive(c.images.Sources.Tell)
	call, err := procfs.ReadSyscall(key.PID, key.PID)
	if err != nil || call.PC == 0 {
		return // the capture will say what is wrong
	}
	if !procmap.Guard.Begin(key.PID) {
		return
	}
	maps, err := procfs.Maps(key.PID)
	procmap.Guard.End(key.PID)
	if err != nil {
		return
	}
	space := c.processes.Open(key.PID, key.StartTime, maps)
	if _, where, ok := space.Lookup(call.PC); ok && where.Module != nil {
		where.Module.ReadAhead(call.PC - where.Bias)
	}
}
