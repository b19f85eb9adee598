package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// confinement reports how a container runtime or a distribution confines this process: AppArmor, SELinux, seccomp and a
// user namespace. Each of these may refuse a capture that capabilities would permit.
func confinement() []finding {
	mode := 0
	if own, err := process.ReadStatus(os.Getpid()); err == nil {
		mode = own.Seccomp
	}
	found := []finding{
		appArmor(read("/sys/module/apparmor/parameters/enabled"), firstOf("/proc/self/attr/apparmor/current",
			"/proc/self/attr/current")),
		seccompMode(mode, deniedCalls()),
		userNamespace(read("/proc/self/uid_map")),
	}
	if enforce := read("/sys/fs/selinux/enforce"); enforce != "" {
		found = append(found, seLinux(enforce, read("/proc/self/attr/current")))
	}
	return found
}

// appArmor reports the profile. An enforced profile can refuse ptrace by its own rules: apparmor.d(5), "Ptrace rules".
func appArmor(enabled, profile string) finding {
	const what = "apparmor"
	switch {
	case enabled != "Y":
		return finding{good, what, "not active in this kernel", ""}
	case profile == "" || profile == "unconfined":
		return finding{good, what, "this process is unconfined", ""}
	case strings.HasSuffix(profile, "(complain)"):
		return finding{good, what, "profile " + profile + " only logs", ""}
	}
	return finding{
		warn, what, "profile " + profile + " may refuse ptrace of processes in another profile",
		"If captures fail, allow ptrace of the server's profile in it, " +
			"or set appArmorProfile to Unconfined for this container.",
	}
}

func seLinux(enforce, label string) finding {
	if enforce != "1" {
		return finding{good, "selinux", "permissive, label " + label, ""}
	}
	return finding{good, "selinux", "enforcing, label " + label + ": the server's type must allow ptrace by it", ""}
}

// seccompMode reports the filter and the calls that it refuses.
func seccompMode(mode int, denied []string) finding {
	const what = "seccomp"
	if mode == 0 {
		return finding{good, what, "no filter", ""}
	}
	text := fmt.Sprintf("a filter (mode %d)", mode)
	switch {
	case len(denied) == 0:
		return finding{good, what, text + " that allows what captures need", ""}
	case denied[0] == callPerf:
		return finding{
			warn, what, text + " without perf_event_open: processes on the CPU cannot be captured without a stop",
			"Allow perf_event_open in the seccomp profile if you need nonstop captures.",
		}
	}
	return finding{
		bad, what, text + " that refuses " + strings.Join(denied, " and "),
		"Allow ptrace and process_vm_readv in the seccomp profile.",
	}
}

// The system calls that a capture needs. perf_event_open is needed only for captures without a stop.
const (
	callPtrace = "ptrace"
	callRead   = "process_vm_readv"
	callPerf   = "perf_event_open"
)

// deniedCalls makes, with invalid arguments, each system call that a capture needs. The kernel's error for these arguments
// differs from the errors of a filter (EPERM, ENOSYS). It returns the calls that a filter refuses.
func deniedCalls() (denied []string) {
	const nobody = ^uintptr(0) // no process has this id
	refused := func(errno unix.Errno) bool { return errno == unix.EPERM || errno == unix.ENOSYS }
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, nobody, 0, 0, 0, 0); refused(errno) {
		denied = append(denied, callPtrace)
	}
	own := uintptr(os.Getpid())
	if _, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, own, 0, 0, 0, 0, 0); refused(errno) {
		denied = append(denied, callRead)
	}
	if _, _, errno := unix.Syscall6(unix.SYS_PERF_EVENT_OPEN, 0, 0, nobody, nobody, 0, 0); refused(errno) {
		denied = append(denied, callPerf)
	}
	return denied
}

// userNamespace reports whether the capabilities of this process are valid on the whole host: user_namespaces(7).
func userNamespace(uidMap string) finding {
	const what, wholeHost = "user namespace", "0 0 4294967295"
	switch ids := strings.Join(strings.Fields(uidMap), " "); ids {
	case wholeHost:
		return finding{good, what, "the host's", ""}
	case "":
		const hint = "Run the worker in the server's user namespace."
		return finding{warn, what, "user ids of this process are not mapped", hint}
	default:
		return finding{
			good, what, "not the host's (uid_map " + ids + "): capabilities count for processes of this namespace only, " +
				"and CAP_BPF and CAP_PERFMON do not count", "",
		}
	}
}

// read returns the text of a small file without final line feeds and NULs, or "" if it cannot be read.
func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(data), "\n\x00")
}

// firstOf returns the text of the first file that exists, or "" if none exists.
func firstOf(paths ...string) string {
	for _, path := range paths {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			return read(path)
		}
	}
	return ""
}
