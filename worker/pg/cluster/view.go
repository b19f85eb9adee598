package cluster

import (
	"fmt"
	"strings"
)

// ProcView describes which processes a server sees in /proc.
type ProcView struct {
	// Hides means that the server may not see the worker: its /proc has the option hidepid (which ProtectProc= of a
	// systemd unit sets), is missing, or cannot be examined.
	Hides bool
	// Reason says why Hides is set, for a message.
	Reason string
}

// maxMounts bounds mountinfo, in bytes. It suffices for some 20,000 mounts of a container host. A hostile container can make
// 100,000 mounts with paths of 4 kB each.
const maxMounts = 4 << 20

// ProcView examines the server's mount of /proc. With hidepid a process sees only processes that it could trace. The
// server's processes can trace the postmaster, but not a worker that has a capability or was started as root.
func (c Cluster) ProcView() ProcView {
	data, err := readProc(c.PostmasterPID, "mountinfo", maxMounts+1)
	switch {
	case err != nil:
		return ProcView{true, fmt.Sprintf("its mounts cannot be read: %v", err)}
	case len(data) > maxMounts:
		return ProcView{true, fmt.Sprintf("its list of mounts has more than %d bytes", maxMounts)}
	}
	return procView(string(data))
}

// SeesWorker reports whether the server sees this process under its own pid and start time.
func (c Cluster) SeesWorker() bool {
	return !c.Outside() && c.ServerStart() == c.PostmasterStart && !c.ProcView().Hides
}

// procView parses mountinfo, see proc(5): fields, a dash, the file system's type, source and options. The last of
// several mounts on one path covers the others.
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
