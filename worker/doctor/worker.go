package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// worker returns the findings on the worker of the cluster: whether one runs, its spool, its rights, and its recorder.
func worker(c cluster.Cluster, o Options) []finding {
	start := "Start it: pg_stat_backtrace worker -D " + render.ShellWord(c.DataDir)
	info, err := spool.Find(c.DataDir)
	switch {
	case err != nil:
		return []finding{{warn, "worker", err.Error(), start}}
	case !info.Alive():
		text := fmt.Sprintf("process %d, which served this server, does not run any more", info.PID)
		return []finding{{warn, "worker", text, start}}
	}
	return slices.Concat([]finding{serving(c, o, info), allowed(c, info)}, timing(info.PID), hurrying(info.PID), history(c, info, time.Now()))
}

// timing returns the finding on a worker that cannot time wait events for SQL, because it has no right to load programs into the
// kernel; none if it has the right.
func timing(pid int) []finding {
	status, err := process.ReadStatus(pid)
	if err != nil || has(status, unix.CAP_BPF) || has(status, unix.CAP_SYS_ADMIN) {
		return nil // another finding has the error
	}
	return []finding{{
		absent, "wait events", "the worker may not load programs into the kernel: SQL functions only sample wait events, and trace none",
		"Start the worker as root, or with CAP_BPF and CAP_PERFMON, and with --wait-event-capture=stats.",
	}}
}

// serving returns the finding on the worker's version and spool: whether the spool exists, and whether the worker and
// this program have the same version.
func serving(c cluster.Cluster, o Options, info spool.Info) finding {
	text := fmt.Sprintf("process %d, version %s, spool %s", info.PID, info.Version, info.Dir)
	if _, err := rootfs.IDs(c.UID, c.GID).Stat(c.Prefix(info.Dir) + info.Dir); err != nil {
		return finding{bad, "worker", fmt.Sprintf("%s: %v", text, err), "It makes a new spool by itself; else restart it."}
	}
	if info.Protocol != spool.Protocol {
		return finding{
			bad, "worker", fmt.Sprintf("%s, protocol %d; this program has protocol %d", text, info.Protocol, spool.Protocol),
			"Restart the worker.",
		}
	}
	if info.Version != o.Version {
		return finding{warn, "worker", fmt.Sprintf("%s; this program is version %s", text, o.Version), "Restart the worker."}
	}
	return finding{good, "worker", text, ""}
}

// allowed returns the finding on the rights of the worker process. The rights of this process, which other findings
// describe, can differ: it may run as root, or without the capabilities that the systemd unit gives to the worker.
func allowed(c cluster.Cluster, info spool.Info) finding {
	status, err := process.ReadStatus(info.PID)
	if err != nil {
		return finding{warn, "rights", fmt.Sprintf("of the worker: %v", err), ""}
	}
	user, trace := status.UID[1], has(status, unix.CAP_SYS_PTRACE)
	text := fmt.Sprintf("the worker runs as user id %d; CAP_SYS_PTRACE: %s, CAP_PERFMON: %s, a seccomp filter: %s",
		user, word(trace), word(has(status, unix.CAP_PERFMON)), word(status.Seccomp != 0))
	const give = "Give the worker CAP_SYS_PTRACE (the systemd unit does), or "
	scope := setting("/proc/sys/kernel/yama/ptrace_scope")
	switch {
	case trace || scope > 2: // for a scope of 3 there is another finding
	case user != c.UID:
		return finding{bad, "rights", text, give + "run it as the server's operating system user."}
	case scope > 0:
		return finding{bad, "rights", text, give + "set kernel.yama.ptrace_scope to 0."}
	}
	return finding{good, "rights", text, ""}
}

// hurrying returns the finding on whether the worker may raise its priority during a stop; none if it has CAP_SYS_NICE.
func hurrying(pid int) []finding {
	status, err := process.ReadStatus(pid)
	if err != nil || has(status, unix.CAP_SYS_NICE) {
		return nil // another finding has the error
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return []finding{{warn, "pauses", fmt.Sprintf("the worker's real-time priority is unknown: %v", err), ""}}
	}
	return pauses(string(data))
}

// pauses returns the finding on real-time priority from the text of /proc/PID/limits: see proc(5).
func pauses(limits string) []finding {
	for line := range strings.Lines(limits) {
		rest, ok := strings.CutPrefix(line, "Max realtime priority")
		if !ok {
			continue
		}
		if soft := strings.Fields(rest); len(soft) > 0 && soft[0] != "0" {
			return []finding{{good, "pauses", "the worker may use real-time priority during a stop", ""}}
		}
	}
	return []finding{{
		warn, "pauses", "the worker may not use real-time priority: on a busy host another process can run during a stop, " +
			"and some pauses take milliseconds", pausesRemedy,
	}}
}
