package process

import (
	"fmt"
	"strconv"
	"strings"
)

// Rollup has the sizes of a process's memory in /proc/PID/smaps_rollup, in bytes. Beside a field is the name there.
type Rollup struct {
	Resident     uint64 // Rss
	Proportional uint64 // Pss
	PrivateClean uint64
	PrivateDirty uint64
	Anonymous    uint64
	Swap         uint64
	SharedMemory uint64 // Resident without PrivateClean and PrivateDirty: pages that other processes have, too
}

// ReadRollup reads how much memory a process uses. The kernel walks all of its page tables for this, which takes some
// milliseconds for each GB in use.
func ReadRollup(pid int) (Rollup, error) {
	text, err := readFile(procPath(pid, "smaps_rollup"))
	if err != nil {
		return Rollup{}, err
	}
	var r Rollup
	fields := map[string]*uint64{
		"Rss:": &r.Resident, "Pss:": &r.Proportional, "Private_Clean:": &r.PrivateClean,
		"Private_Dirty:": &r.PrivateDirty, "Anonymous:": &r.Anonymous, "Swap:": &r.Swap,
	}
	found := 0
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 3 || words[2] != "kB" || fields[words[0]] == nil {
			continue
		}
		n, err := strconv.ParseUint(words[1], 10, 54)
		if err != nil {
			return Rollup{}, fmt.Errorf("process %d: smaps_rollup: %w", pid, err)
		}
		*fields[words[0]] = n << 10
		found++
	}
	if found != len(fields) {
		return Rollup{}, fmt.Errorf("process %d: smaps_rollup has %d of %d fields", pid, found, len(fields))
	}
	r.SharedMemory = r.Resident - min(r.Resident, r.PrivateClean+r.PrivateDirty)
	return r, nil
}
