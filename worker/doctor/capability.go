package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/measure/allocs"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
)

// need is a feature of captures. anyOf lists capabilities: one of them suffices for the feature on this host. If anyOf is
// empty, the feature needs no capability.
type need struct {
	feature string
	anyOf   []int
	never   bool // the kernel denies it to every process
}

// names has the names of the capabilities that needs lists.
var names = map[int]string{
	unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE", unix.CAP_PERFMON: "CAP_PERFMON",
	unix.CAP_CHECKPOINT_RESTORE: "CAP_CHECKPOINT_RESTORE", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
}

// needs returns the features of the table "Capabilities" in doc/worker.md. scope is kernel.yama.ptrace_scope (0 in a
// kernel without yama), and paranoid is kernel.perf_event_paranoid.
func needs(scope, paranoid int) []need {
	list := []need{
		{feature: "stop a process of the same user, or read it asleep"},
		{feature: "sample a process on the CPU (engine running)"},
		{feature: "capture a process of another user, or one that is not dumpable", anyOf: []int{unix.CAP_SYS_PTRACE}},
		{
			feature: "all names of a library that is deleted or replaced",
			anyOf:   []int{unix.CAP_CHECKPOINT_RESTORE, unix.CAP_SYS_ADMIN},
		},
		{feature: "the kernel's stack of a process in state D", anyOf: []int{unix.CAP_SYS_ADMIN}},
	}
	if scope > 0 {
		list[0].anyOf = []int{unix.CAP_SYS_PTRACE}
	}
	const untilReboot = 3
	if scope >= untilReboot {
		list[0].never, list[2].never = true, true
	}
	const everybody = 2
	if paranoid > everybody {
		list[1].anyOf = []int{unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}
	}
	return list
}

// rights returns a finding for each feature: whether this process can use it, and if not, the reason.
func rights() []finding {
	own, err := process.ReadStatus(os.Getpid())
	if err != nil {
		return []finding{{warn, "capability", err.Error(), ""}}
	}
	list := needs(setting("/proc/sys/kernel/yama/ptrace_scope"), setting("/proc/sys/kernel/perf_event_paranoid"))
	found := make([]finding, 0, len(list))
	for _, n := range list {
		found = append(found, permitted(n, own))
	}
	found = append(found, shortPauses(ptrace.MayHurry()))
	found = append(found, quota(process.CPUQuota(), ptrace.MayHurry())...)
	found = append(found,
		program("capability", "sample without a stop (profile)", clusterbpf.Check(), own),
		program("capability", "trace allocations (memory --allocations)", allocs.Check(), own))
	return append(append(found, waitTiming(own)...), functionCalls(own))
}

// permitted returns the finding on a feature that depends on capabilities, for a process with this status.
func permitted(n need, status process.Status) finding {
	const what = "capability"
	if n.never {
		return finding{
			absent, what, n.feature + ": kernel.yama.ptrace_scope is 3, until a reboot",
			"Set kernel.yama.ptrace_scope to at most 2 and reboot.",
		}
	}
	if len(n.anyOf) == 0 {
		return finding{good, what, n.feature + ": no capability needed", ""}
	}
	words, have := make([]string, 0, len(n.anyOf)), false
	for _, c := range n.anyOf {
		words = append(words, names[c])
		have = have || has(status, c)
	}
	wanted := strings.Join(words, " or ")
	if !have {
		return finding{absent, what, n.feature + ": needs " + wanted, "Grant " + wanted + ", or run as root."}
	}
	return finding{good, what, n.feature + ": by " + wanted, ""}
}

const pausesRemedy = "Grant RLIMIT_RTPRIO of 1 (LimitRTPRIO=1 in a systemd unit, rtprio in limits.conf) or " +
	"CAP_SYS_NICE."

// shortPauses returns the finding on real-time priority during a stop. mayHurry says whether this process may use it.
func shortPauses(mayHurry bool) finding {
	const what = "capability"
	if mayHurry {
		return finding{good, what, "short pauses on a busy host: by real-time priority during a stop", ""}
	}
	return finding{
		absent, what, "short pauses on a busy host: this process may not use real-time priority, so another process can " +
			"run during a stop, and some pauses take milliseconds", pausesRemedy,
	}
}

// quota warns about a quota of processor time (in processors; 0: none), if this process may not raise its priority
// during a stop.
func quota(processors float64, mayHurry bool) []finding {
	if processors == 0 || mayHurry {
		return nil
	}
	return []finding{{
		warn, "capability", fmt.Sprintf("this process has a quota of %.2f processors: if it is used up during a stop, "+
			"the captured process stays stopped until the next period, for up to 100 ms by default", processors),
		"Grant RLIMIT_RTPRIO of 1 or CAP_SYS_NICE, or remove the quota (cpu.max, CPUQuota=, limits.cpu).",
	}}
}

// program returns the finding on a feature that runs a BPF program in the kernel. err is the reason for which the
// kernel does not accept the program from this process, or nil.
func program(what, feature string, err error, own process.Status) finding {
	if err == nil {
		return finding{good, what, feature + ": by programs in the kernel", ""}
	}
	return finding{absent, what, fmt.Sprintf("%s: %v", feature, err), programRemedy(err, own)}
}

// programRemedy returns a hint to grant the capabilities for BPF programs, if the kernel has refused permission and the
// process lacks them. Otherwise it returns "", because no capability helps.
func programRemedy(err error, own process.Status) string {
	if !errors.Is(err, fs.ErrPermission) ||
		has(own, unix.CAP_SYS_ADMIN) || has(own, unix.CAP_BPF) && has(own, unix.CAP_PERFMON) {
		return ""
	}
	return "Run as root, or grant CAP_BPF and CAP_PERFMON."
}

// functionCalls returns the finding on tracing functions, with the measured cost of a call.
func functionCalls(own process.Status) finding {
	const what = "functions"
	cost, err := probe.Calibrate()
	if err != nil {
		return finding{absent, what, fmt.Sprintf("trace calls of functions (trace): %v", err), programRemedy(err, own)}
	}
	text := "calls can be traced (trace)"
	if cost.Emulated > 0 {
		text = fmt.Sprintf("calls can be traced (trace): a call costs %.1f µs, single-stepped %.1f µs",
			cost.Emulated.Seconds()*1e6, cost.Stepped.Seconds()*1e6)
	}
	return finding{good, what, text, ""}
}

// waitTiming returns a finding for each mechanism of timing wait events: whether this process can use it.
func waitTiming(own process.Status) (found []finding) {
	const what = "wait events"
	for _, p := range waits.Possibilities() {
		text := fmt.Sprintf("%s by %s (%s)", p.Method, p.Mechanism, waitCost(p.Mechanism))
		if p.Err != nil {
			found = append(found, finding{absent, what, fmt.Sprintf("%s: %v", text, p.Err), programRemedy(p.Err, own)})
			continue
		}
		if p.Uring == nil {
			found = append(found, finding{good, what, text, ""})
			continue
		}
		found = append(found, finding{good, what, text + ", up to PostgreSQL 17", ""}, finding{
			absent, what, fmt.Sprintf("%s, of PostgreSQL 18 and later: %v", text, p.Uring), programRemedy(p.Uring, own),
		})
	}
	return found
}

// waitCost returns the estimated cost of a mechanism, as a part of the processor time of a transaction of pgbench. The
// figures were measured on virtual machines with two processors. `make bench-waits` measures it on this host.
func waitCost(mechanism string) string {
	switch mechanism {
	case "fentry":
		return "estimated cost: up to 2 %"
	case "tracepoints":
		return "estimated cost: up to 15 %"
	case "sched_switch":
		return "estimated cost: up to 3 %"
	}
	return "no measurable cost"
}

// has reports whether a process has a capability in its effective set.
func has(status process.Status, capability int) bool { return status.CapEff&(1<<capability) != 0 }

func word(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// setting reads a number from a file of /proc/sys. It returns 0 if the file is missing or has no number.
func setting(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return n
}
