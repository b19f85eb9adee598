package console

import (
	"fmt"
	"strconv"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
)

// NameOrOID returns the name of an object, or "oid N" if the name is not known. It returns "" if the OID is 0 too.
func NameOrOID(name string, oid uint32) string {
	if name == "" && oid != 0 {
		return "oid " + strconv.FormatUint(uint64(oid), 10)
	}
	return name
}

// DebugDirUsage is the help of --debug-dir.
const DebugDirUsage = "look for separate debug files below `DIRECTORY` (may be given several times; default " +
	elfimage.DefaultFolder + ")"

// LinesWait is the longest time for which a command waits for the source lines of a program that it captures for the first time.
// It is longer than the worker waits, because a command answers only one user.
const LinesWait = 10 * time.Second

// Identities returns the processes that have these process ids now. A capture of such a target fails if the kernel has given the
// id to a new process since.
func Identities(pids []int) []process.Target {
	targets := make([]process.Target, len(pids))
	for i, pid := range pids {
		targets[i] = process.Target{PID: pid, UID: -1}
		if held, err := process.Hold(pid); err == nil {
			targets[i].Held = held // never released, because it is needed as long as this program runs
		}
		if stat, err := process.ReadStat(pid); err == nil { // otherwise the capture returns the error
			targets[i].StartTime = stat.StartTime
		}
	}
	return targets
}

// ProcessIDs reads arguments that must be process ids.
func ProcessIDs(args []string) ([]int, error) {
	pids := make([]int, len(args))
	for i, arg := range args {
		pid, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("%q is not a process id", arg)
		}
		pids[i] = int(pid)
	}
	return pids, nil
}
