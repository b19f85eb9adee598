package cli

import (
	"fmt"
	"strconv"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
)

func nameOrOID(name string, oid uint32) string {
	if name == "" && oid != 0 {
		return "oid " + strconv.FormatUint(uint64(oid), 10)
	}
	return name
}

// debugDirUsage is the help of --debug-dir.
const debugDirUsage = "look for separate debug files below `DIRECTORY` (may be given several times; default " +
	elfimage.DefaultFolder + ")"

// linesWait is how long the command line waits for source lines of a process
// that is seen for the first time: nobody waits behind it.
const linesWait = 10 * time.Second

// identities are the processes as they are now: in a later round another one that has got the same number is not taken
// for the one that was meant.
func identities(pids []int) []process.Target {
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

// processIDs reads the arguments.
func processIDs(args []string) ([]int, error) {
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
