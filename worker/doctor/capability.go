package doctor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/bpf/clusterbpf"
	"pg_stat_backtrace/ptrace/bpf/samplerbpf"
	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
)

// need is a feature of captures, and which capabilities give it here; without any listed, everybody has it.
type need struct {
	feature string
	anyOf   []int
	never   bool // no capability gives it
}

// names of the capabilities that are of any use.
var names = map[int]string{
	unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE", unix.CAP_PERFMON: "CAP_PERFMON",
	unix.CAP_CHECKPOINT_RESTORE: "CAP_CHECKPOINT_RESTORE", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
}

// needs is the table "Capabilities" of doc/worker.md for a machine with these settings of kernel.yama.ptrace_scope (0
// also where there is no yama) and kernel.perf_event_paranoid.
func needs(scope, paranoid int) []need {
	list := []need{
		{feature: "stop a process of the own user, or read it asleep"},
		{feature: "sample one on the CPU (engine running)"},
		{feature: "the same of another user's, or one that is not dumpable", anyOf: []int{unix.CAP_SYS_PTRACE}},
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

// rights says for each feature which capability it takes on this machine, and whether this process has it.
func rights() []finding {
	own, err := procfs.ReadStatus(os.Getpid())
	if err != nil {
		return []finding{{warn, "capability", err.Error(), ""}}
	}
	list := needs(setting("/proc/sys/kernel/yama/ptrace_scope"), setting("/proc/sys/kernel/perf_event_paranoid"))
	found := make([]finding, 0, len(list))
	for _, n := range list {
		text, have := n.feature+": no capability needed", len(n.anyOf) == 0
		words := make([]string, 0, len(n.anyOf))
		for _, c := range n.anyOf {
			words = append(words, names[c])
			have = have || has(own, c)
		}
		switch {
		case n.never:
			text = n.feature + ": not possible until a reboot, because kernel.yama.ptrace_scope is 3"
		case len(words) > 0:
			text = fmt.Sprintf("%s: %s (this process: %s)", n.feature, strings.Join(words, " or "),
				word(have))
		}
		found = append(found, finding{good, "capability", text, ""})
	}
	text := fmt.Sprintf("short pauses on a busy machine: CAP_SYS_NICE or RLIMIT_RTPRIO of 1 (this process: %s)",
		word(ptrace.MayHurry()))
	found = append(found, finding{good, "capability", text, ""})
	found = append(found, quota(process.CPUQuota(), ptrace.MayHurry())...)
	found = append(found, finding{good, "capability", sampling(), ""},
		finding{good, "capability", serverSampling(), ""})
	return append(append(found, waitTiming()...), functionCalls())
}

// quota warns about a quota of processor time, if this process may not raise its priority during a stop.
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

// functionCalls says whether this process may trace functions here, and what a call costs.
func functionCalls() finding {
	cost, err := probe.Calibrate()
	if err != nil {
		return finding{good, "functions", "calls cannot be traced by this process: " + err.Error(), ""}
	}
	text := "calls can be traced"
	if cost.Emulated > 0 {
		text = fmt.Sprintf("calls can be traced (trace): a call costs %.1f µs, single-stepped %.1f µs",
			cost.Emulated.Seconds()*1e6, cost.Stepped.Seconds()*1e6)
	}
	return finding{good, "functions", text, ""}
}

// waitTiming says which ways of timing wait events this process may use here.
func waitTiming() (found []finding) {
	for _, p := range waits.Possibilities() {
		text := fmt.Sprintf("%s by %s (%s)", p.Method, p.Mechanism, waitCost(p.Mechanism))
		if p.Err != nil {
			text += fmt.Sprintf(": not available: %v", p.Err)
		}
		if p.Uring != nil {
			text += fmt.Sprintf(": not available for PostgreSQL 18 and later: %v", p.Uring)
		}
		found = append(found, finding{good, "wait events", text, ""})
	}
	return found
}

// waitCost is the estimated cost of a mechanism, as a share of the processor time of a transaction of pgbench, by
// measurements on virtual machines with two processors. `make bench-waits` measures it on this host.
func waitCost(mechanism string) string {
	switch mechanism {
	case "fentry":
		return "estimated cost: up to 2 %"
	case "tracepoints":
		return "estimated cost: up to 15 %"
	case "sched_switch":
		return "estimated cost: up to 3 %"
	case "watchpoint":
		return "one process only, some microseconds for each wait"
	}
	return "no measurable cost"
}

// sampling says whether processes can be sampled without a stop.
func sampling() string {
	return possible("sample without a stop (command profile): CAP_BPF and CAP_PERFMON, Linux 6.10", samplerbpf.Check())
}

// serverSampling says the same of all processes of a server.
func serverSampling() string {
	return possible("sample a whole server (profile -D): CAP_BPF and CAP_PERFMON, Linux 6.10", clusterbpf.Check())
}

// possible words whether this process can use a feature.
func possible(feature string, err error) string {
	if err != nil {
		return fmt.Sprintf("%s (this process: no: %v)", feature, err)
	}
	return feature + " (this process: yes)"
}

// has says whether a process has a capability.
func has(status procfs.Status, capability int) bool { return status.CapEff&(1<<capability) != 0 }

func word(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// setting reads a number of /proc/sys; 0 where there is none.
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
