package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// machine has the facts about an architecture that a filter needs.
type machine struct {
	audit     uint32 // AUDIT_ARCH_*, of linux/audit.h: other calling conventions have other call numbers
	low       uint32 // offset of the low half of a 64-bit argument
	alternate uint32 // bit of the numbers of a second convention with the same audit value; 0 if there is none
	// socketCall is the number of socketcall(2), which makes other calls for sockets. It is 0 if there is none.
	socketCall uint32
}

var machines = map[string]machine{
	"amd64":   {audit: unix.AUDIT_ARCH_X86_64, alternate: 0x4000_0000}, // x32
	"arm64":   {audit: unix.AUDIT_ARCH_AARCH64},
	"ppc64le": {audit: unix.AUDIT_ARCH_PPC64LE, socketCall: 102},
	"s390x":   {audit: unix.AUDIT_ARCH_S390X, low: 4, socketCall: 102},
	"riscv64": {audit: unix.AUDIT_ARCH_RISCV64},
}

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	numberAt   = 0
	auditAt    = 4
	argumentAt = 16
)

// Instructions of classic BPF.
const (
	load      = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	ifEqual   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	ifAnyBit  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	returning = unix.BPF_RET | unix.BPF_K
)

var (
	allow  = unix.SockFilter{Code: returning, K: unix.SECCOMP_RET_ALLOW}
	refuse = unix.SockFilter{Code: returning, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
)

// A check is a condition on an argument of a call.
type check struct {
	argument uint32 // its number, from 0
	value    uint64
	wide     bool // compare 64 bits; the kernel takes the other arguments as 32 bits, or refuses what exceeds them itself
	not      bool // the argument must have another value
}

// A rule allows a call if all checks of one of its cases are true.
type rule struct {
	number uint32
	cases  [][]check
}

// rules are the calls that are allowed only with certain arguments. own is the id of this process. Otherwise the
// worker could end a process of the same user by a signal or by a limit of processor time.
func rules(own int) []rule {
	request := func(number uint64) check { return check{argument: 0, value: number} }
	self := check{argument: 0, value: uint64(own)}
	return []rule{
		{unix.SYS_PTRACE, [][]check{
			// Options are in data: PTRACE_O_EXITKILL kills the target when this process ends.
			{request(unix.PTRACE_SEIZE), {argument: 3, value: 0, wide: true}},
			{request(unix.PTRACE_INTERRUPT)},
			{request(unix.PTRACE_GETREGSET)},
			// The fourth argument is the signal that the target gets instead of its own. A pending signal is never
			// SIGKILL there.
			{request(unix.PTRACE_DETACH), {argument: 3, value: uint64(unix.SIGKILL), not: true}},
		}},
		{unix.SYS_KILL, [][]check{{self}, {{argument: 1, value: 0}}}},
		{unix.SYS_TGKILL, [][]check{{self}, {{argument: 2, value: 0}}}},
		{unix.SYS_PRLIMIT64, [][]check{{self}, {{argument: 0, value: 0}}}},
	}
}

// filter returns the BPF program for the process with the given id. Each test jumps over the following verdict if it
// does not apply. The calls in allowed are not refused.
func (m machine) filter(own int, allowed []uint32) []unix.SockFilter {
	p := []unix.SockFilter{
		{Code: load, K: auditAt},
		{Code: ifEqual, K: m.audit, Jt: 1}, refuse,
		{Code: load, K: numberAt},
	}
	if m.alternate != 0 {
		p = append(p, unix.SockFilter{Code: ifAnyBit, K: m.alternate, Jf: 1}, refuse)
	}
	for _, number := range forbidden {
		if slices.Contains(allowed, number) {
			continue
		}
		p = append(p, unix.SockFilter{Code: ifEqual, K: number, Jf: 1}, refuse)
	}
	all := rules(own)
	if m.socketCall != 0 && !slices.Contains(allowed, unix.SYS_LISTEN) {
		const listen = 4 // SYS_LISTEN of linux/net.h
		all = append(all, rule{m.socketCall, [][]check{{{argument: 0, value: listen, not: true}}}})
	}
	for _, r := range all {
		block := m.block(r.cases)
		p = append(p, unix.SockFilter{Code: ifEqual, K: r.number, Jf: uint8(len(block))})
		p = append(p, block...)
	}
	return append(p, allow)
}

// block allows one of the cases and refuses the rest.
func (m machine) block(cases [][]check) (p []unix.SockFilter) {
	for _, checks := range cases {
		var test []unix.SockFilter
		for _, c := range checks {
			at := argumentAt + 8*c.argument
			test = append(test, unix.SockFilter{Code: load, K: at + m.low}, c.compare(uint32(c.value)))
			if c.wide {
				test = append(test, unix.SockFilter{Code: load, K: at + 4 - m.low}, c.compare(uint32(c.value>>32)))
			}
		}
		test = append(test, allow)
		for i := range test { // to the next case
			switch {
			case test[i].Code != ifEqual:
			case test[i].Jt == next:
				test[i].Jt = uint8(len(test) - i - 1)
			default:
				test[i].Jf = uint8(len(test) - i - 1)
			}
		}
		p = append(p, test...)
	}
	return append(p, refuse)
}

// next is a placeholder for a jump to the next case, until its distance is known.
const next = 0xff

// compare tests half of an argument.
func (c check) compare(value uint32) unix.SockFilter {
	if c.not {
		return unix.SockFilter{Code: ifEqual, K: value, Jt: next}
	}
	return unix.SockFilter{Code: ifEqual, K: value, Jf: next}
}
