package console

import (
	"fmt"
	"strconv"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
)

// NameOrOID returns the name, or "oid N" for an object whose name is not known. It returns "" for no object.
func NameOrOID(name string, oid uint32) string {
	if name == "" && oid != 0 {
		return "oid " + strconv.FormatUint(uint64(oid), 10)
	}
	return name
}

// DebugDirUsage is the help of --debug-dir.
const DebugDirUsage = "look for separate debug files below `DIRECTORY` (may be given several times; default " +
	elfimage.DefaultFolder + ")"

// LinesWait is how long a command waits for the source lines of a process that it sees for the first time. It may be long,
// because a command answers one user.
const LinesWait = 10 * time.Second

// Identities returns the processes that have these process ids now. If the kernel gives an id to a new process later, that
// process is not taken for the first.
func Identities(pids []int) []process.Target {
	targets := make([]process.Target, len(pids))
	for i, pid := range pids {
		targets[i] = process.Target{PID: pid, UID: -1}
		if held, err := process.Hold(pid); err == nil {
			targets[i].Held = held // as long as this program runs
		}
		if stat, err := process.ReadStat(pid); err == nil { // if not, the capture says why
			targets[i].StartTime = stat.StartTime
		}
	}
	return targets
}

// ProcessIDs reads the arguments.
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
