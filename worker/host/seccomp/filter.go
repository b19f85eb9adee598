package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// machine is what a filter must know of an architecture.
type machine struct {
	audit     uint32 // AUDIT_ARCH_*, of linux/audit.h: other calling conventions have other numbers of calls
	low       uint32 // offset of the low half of a 64-bit argument
	alternate uint32 // bit of the numbers of a second convention with the same audit value; 0 if there is none
}

var machines = map[string]machine{
	"amd64":   {audit: unix.AUDIT_ARCH_X86_64, alternate: 0x4000_0000}, // x32
	"arm64":   {audit: unix.AUDIT_ARCH_AARCH64},
	"ppc64le": {audit: unix.AUDIT_ARCH_PPC64LE},
	"s390x":   {audit: unix.AUDIT_ARCH_S390X, low: 4},
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

// filter is the program. Each test jumps over the verdict that follows it when it does not apply.
func (m machine) filter(allowed []uint32) []unix.SockFilter {
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
	p = append(p,
		unix.SockFilter{Code: ifEqual, K: unix.SYS_PTRACE, Jt: 1}, allow,
		unix.SockFilter{Code: load, K: argumentAt + m.low})
	for _, request := range tracing {
		p = append(p, unix.SockFilter{Code: ifEqual, K: request, Jf: 1}, allow)
	}
	return append(p, refuse)
}
