package host

import (
	"slices"

	"golang.org/x/sys/unix"
)

// machine has the facts about an architecture that a filter needs.
type machine struct {
	audit uint32 // AUDIT_ARCH_* of linux/audit.h; calls by another convention have other numbers, and are refused
	low   uint32 // offset of the low half of a 64-bit argument
	// socketCall is the number of socketcall(2), one system call for all operations on sockets. 0: the architecture has
	// none.
	socketCall uint32
	// cloneFlags is the index, from 0, of the argument of clone(2) that has the flags.
	cloneFlags uint32
	// mmapByPointer means that mmap(2) has its arguments in memory, where a filter cannot see them.
	mmapByPointer bool
	// old are forbidden calls that only some architectures have.
	old []uint32
}

// endOfCalls is the first number after all system calls that this package knows. Calls from here on are unknown. The
// kernel gives the same numbers to new calls on all architectures. On x86-64, numbers from 512 to 547 and numbers with
// bit 30 are calls of x32. Kernels before 5.4 accept the numbers from 512 to 547 without bit 30; ptrace and execve are
// among these.
const endOfCalls = 470

var machines = map[string]machine{
	"amd64": {audit: unix.AUDIT_ARCH_X86_64, old: []uint32{
		57, 58, // fork, vfork
		65,            // semop
		154, 172, 173, // modify_ldt, iopl, ioperm
		134, 156, 174, 177, 178, 180, // uselib, _sysctl, create_module, get_kernel_syms, query_module, nfsservctl
		133, // mknod
	}},
	"arm64": {audit: unix.AUDIT_ARCH_AARCH64, old: []uint32{193}}, // semop
	"ppc64le": {audit: unix.AUDIT_ARCH_PPC64LE, socketCall: 102, old: []uint32{
		2, 189, 117, // fork, vfork, ipc
		110, 101, 113, 123, // iopl, ioperm, vm86, modify_ldt
		86, 149, 127, 130, 166, 168, // uselib, _sysctl, create_module, get_kernel_syms, query_module, nfsservctl
		199, 200, 255, 278, 279, // pciconfig_write, pciconfig_iobase, rtas, spu_run, spu_create
		14, // mknod
	}},
	"s390x": {audit: unix.AUDIT_ARCH_S390X, low: 4, socketCall: 102, cloneFlags: 1, mmapByPointer: true, old: []uint32{
		2, 190, 117, // fork, vfork, ipc
		86, 149, 127, 130, 167, 169, // uselib, _sysctl, create_module, get_kernel_syms, query_module, nfsservctl
		342, 352, 353, // s390_runtime_instr, s390_pci_mmio_write, s390_pci_mmio_read
		14, // mknod
	}},
	"riscv64": {audit: unix.AUDIT_ARCH_RISCV64, old: []uint32{193}}, // semop
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
	ifAtLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	returning = unix.BPF_RET | unix.BPF_K
)

var (
	allow  = unix.SockFilter{Code: returning, K: unix.SECCOMP_RET_ALLOW}
	refuse = unix.SockFilter{Code: returning, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	// unknown makes a call look missing, as on an older kernel. Libraries then use another call.
	unknown = unix.SockFilter{Code: returning, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
)

// A check is a condition on an argument of a call.
type check struct {
	argument uint32 // index of the argument, from 0
	value    uint64
	test     test
	wide     bool // compare 64 bits; for other arguments the kernel uses only 32 bits, or refuses larger values itself
}

// A test compares an argument with the value of a check.
type test int

const (
	equal   test = iota
	unequal      // the argument has another value
	anyBit       // the argument has at least one of the value's bits
	noBit        // the argument has no bit of the value
)

// namespaces are the flags of clone(2) that make namespaces.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Commands of fcntl(2), ioctl(2) and prctl(2) that reach another process. The kernel sends a signal to the owner of a
// file when the file becomes ready, and F_SETSIG chooses the signal. Characters pushed into a terminal reach its shell.
const (
	setOwner, setSignal, setOwnerEx = 8, 10, 15      // F_SETOWN, F_SETSIG, F_SETOWN_EX
	fileOwner, socketOwner          = 0x8901, 0x8902 // FIOSETOWN, SIOCSPGRP
	terminalInput, consoleInput     = 0x5412, 0x541c // TIOCSTI, TIOCLINUX
)

// otherThan returns the checks of a case in which an argument has none of the values.
func otherThan(argument uint32, values ...uint64) []check {
	checks := make([]check, 0, len(values))
	for _, v := range values {
		checks = append(checks, check{argument: argument, value: v, test: unequal})
	}
	return checks
}

// A rule allows a call if all checks of one of its cases are true.
type rule struct {
	number uint32
	cases  [][]check
}

// rules returns the calls that are allowed only with certain arguments. The parameter own is the id of this process.
// With other arguments the worker could end another process of the same user by a signal or by a limit of processor
// time, or slow it down.
func (m machine) rules(own int) []rule {
	request := func(number uint64) check { return check{argument: 0, value: number} }
	self := check{argument: 0, value: uint64(own)}
	calling := check{argument: 0, value: 0} // the calling thread
	rules := []rule{
		{unix.SYS_PTRACE, [][]check{
			// Options are in data: PTRACE_O_EXITKILL kills the target when this process ends.
			{request(unix.PTRACE_SEIZE), {argument: 3, value: 0, wide: true}},
			{request(unix.PTRACE_SEIZE), {argument: 3, value: unix.PTRACE_O_TRACEEXEC, wide: true}},
			{request(unix.PTRACE_INTERRUPT)},
			{request(unix.PTRACE_GETREGSET)},
			// The fourth argument is the signal that the target gets at the detach. A capture passes on the signal that
			// stopped the target, which is never SIGKILL.
			{request(unix.PTRACE_DETACH), {argument: 3, value: uint64(unix.SIGKILL), test: unequal}},
		}},
		{unix.SYS_KILL, [][]check{{self}, {{argument: 1, value: 0}}}},
		{unix.SYS_TGKILL, [][]check{{self}, {{argument: 2, value: 0}}}},
		{unix.SYS_PRLIMIT64, [][]check{{self}, {calling}}},
		{unix.SYS_SCHED_SETSCHEDULER, [][]check{{calling}}},
		{unix.SYS_SCHED_SETPARAM, [][]check{{calling}}},
		{unix.SYS_SCHED_SETATTR, [][]check{{calling}}},
		{unix.SYS_SCHED_SETAFFINITY, [][]check{{calling}}},
		// Only threads may be started: the worker needs no new process, and a new user namespace would give every
		// capability.
		{unix.SYS_CLONE, [][]check{{
			{argument: m.cloneFlags, value: unix.CLONE_THREAD, test: anyBit},
			{argument: m.cloneFlags, value: namespaces, test: noBit},
		}}},
		{unix.SYS_FCNTL, [][]check{otherThan(1, setOwner, setSignal, setOwnerEx)}},
		{unix.SYS_IOCTL, [][]check{otherThan(1, fileOwner, socketOwner, terminalInput, consoleInput)}},
		{unix.SYS_PRCTL, [][]check{otherThan(0, unix.PR_SET_SECCOMP, unix.PR_SET_MM, unix.PR_SET_PTRACER,
			unix.PR_SCHED_CORE)}},
		{unix.SYS_SOCKET, [][]check{{{value: unix.AF_UNIX}}, {{value: unix.AF_INET}}, {{value: unix.AF_INET6}},
			{{value: unix.AF_NETLINK}}}},
	}
	if !loadsLibraries {
		code := check{argument: 2, value: unix.PROT_EXEC, test: noBit}
		rules = append(rules, rule{unix.SYS_MPROTECT, [][]check{{code}}})
		if !m.mmapByPointer {
			rules = append(rules, rule{unix.SYS_MMAP, [][]check{{code}}})
		}
	}
	return rules
}

// filter returns the BPF program for the process with the given id. Each test jumps over the verdict that follows if
// the test does not match. The calls in allowed are not refused. The rules come first because a capture makes these
// calls while its target is stopped, and a call must not pass many tests.
func (m machine) filter(own int, allowed []uint32) []unix.SockFilter {
	p := []unix.SockFilter{
		{Code: load, K: auditAt},
		{Code: ifEqual, K: m.audit, Jt: 1}, refuse,
		{Code: load, K: numberAt},
		{Code: ifAtLeast, K: endOfCalls, Jf: 1}, unknown,
	}
	all := m.rules(own)
	if m.socketCall != 0 && !slices.Contains(allowed, unix.SYS_LISTEN) {
		const listen = 4 // SYS_LISTEN of linux/net.h
		all = append(all, rule{m.socketCall, [][]check{{{argument: 0, value: listen, test: unequal}}}})
	}
	for _, r := range all {
		block := m.block(r.cases)
		p = append(p, unix.SockFilter{Code: ifEqual, K: r.number, Jf: uint8(len(block))})
		p = append(p, block...)
	}
	// clone3(2) has its flags in memory, where a filter cannot see them. After ENOSYS a C library starts its threads
	// with clone(2).
	p = append(p, unix.SockFilter{Code: ifEqual, K: unix.SYS_CLONE3, Jf: 1}, unknown)
	for _, number := range slices.Concat(forbidden, m.old) {
		if !slices.Contains(allowed, number) {
			p = append(p, unix.SockFilter{Code: ifEqual, K: number, Jf: 1}, refuse)
		}
	}
	return append(p, allow)
}

// block returns instructions that allow a call if one of the cases applies, and otherwise refuse it.
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
		for i := range test { // jump to the next case if a check fails
			switch {
			case test[i].Code != ifEqual && test[i].Code != ifAnyBit:
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

// compare returns the instruction that tests 32 bits of an argument. If the test fails, it jumps to the next case.
func (c check) compare(value uint32) unix.SockFilter {
	switch c.test {
	case unequal:
		return unix.SockFilter{Code: ifEqual, K: value, Jt: next}
	case anyBit:
		return unix.SockFilter{Code: ifAnyBit, K: value, Jf: next}
	case noBit:
		return unix.SockFilter{Code: ifAnyBit, K: value, Jt: next}
	case equal:
	}
	return unix.SockFilter{Code: ifEqual, K: value, Jf: next}
}
