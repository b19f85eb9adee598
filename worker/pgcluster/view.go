package pgcluster

import (
	"fmt"
	"os"
	"strings"
)

// ProcView is what a server sees of other processes.
type ProcView struct {
	// Hides says that the server may not see the worker: its /proc has the option hidepid (ProtectProc= of a systemd
	// unit sets it), is missing, or cannot be looked at.
	Hides bool
	// Reason says why, for a message.
	Reason string
}

// ProcView looks at the server's mount of /proc. With hidepid a process sees only those that it could trace: a worker
// that has a capability, or that came from root, is not among them, while the postmaster is for its own children.
func (c Cluster) ProcView() ProcView {
	data, err := os.ReadFile(procPath(c.PostmasterPID, "mountinfo"))
	if err != nil {
		return ProcView{true, fmt.Sprintf("its mounts cannot be read: %v", err)}
	}
	return procView(string(data))
}

// SeesWorker reports whether the server sees this process as it is.
func (c Cluster) SeesWorker() bool {
	return !c.Outside() && c.ServerStart() == c.PostmasterStart && !c.ProcView().Hides
}

// procView reads mountinfo, see proc(5): fields, a dash, the type of the file system, its source, and its own options.
// The last one of several mounts in one place covers the others.
func procView(mountinfo string) ProcView {
	view := ProcView{true, "it has no /proc"}
	for line := range strings.Lines(mountinfo) {
		mount, system, ok := strings.Cut(line, " - ")
		const point, kind, options = 4, 0, 2
		fields, own := strings.Fields(mount), strings.Fields(system)
		if !ok || len(fields) <= point || len(own) <= options || fields[point] != "/proc" {
			continue
		}
		view = ProcView{}
		if own[kind] != "proc" {
			view = ProcView{true, "its /proc is of the type " + own[kind]}
		}
		for option := range strings.SplitSeq(own[options], ",") {
			if mode, found := strings.CutPrefix(option, "hidepid="); found && mode != "0" && mode != "off" {
				view = ProcView{true, "its /proc has the option " + option}
			}
		}
	}
	return view
}
