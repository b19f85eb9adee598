package capture

import (
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// anticipate reads the symbols and lines of the code in which a process sleeps, while its first capture is prepared.
// Most processes sleep, and are still in the same function when they are stopped. Without anticipate, most of the time
// of the worker's first capture would be spent on the lines of the C library.
func (c *Capturer) anticipate(key naming.ProcessKey) {
	host.BeginWork()
	defer host.EndWork()
	defer symbolize.Survive(c.images.Sources.Warn)
	call, err := process.ReadSyscall(key.PID, key.PID)
	if err != nil || call.PC == 0 {
		return // the capture will report the error
	}
	if !process.Guard.Begin(key.PID) {
		return
	}
	maps, err := process.Maps(key.PID)
	process.Guard.End(key.PID)
	if err != nil {
		return
	}
	space := c.processes.Open(key.PID, key.StartTime, maps)
	if _, where, ok := space.Lookup(call.PC); ok && where.Module != nil {
		where.Module.ReadAhead(call.PC - where.Bias)
	}
}
