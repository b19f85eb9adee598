package golang

import (
	"fmt"
	"strconv"
	"strings"
)

// Offsets of the fields stack.lo, stack.hi, m, sched.sp, sched.pc and sched.g in runtime.g. They are equal in all known
// versions.
const (
	offStackLow  = 0
	offStackHigh = 8
	offThread    = 48
	offSP        = 56
	offPC        = 64
	offSelf      = 72
)

// Layout contains the offsets in bytes that differ between versions of Go. An offset of 0 means that the field does not
// exist or is unknown.
type Layout struct {
	// In runtime.g: sched.bp, sched.lr, syscallsp, syscallpc, syscallbp, atomicstatus, goid, waitreason, lockedm,
	// parentGoid and gopc.
	BP, LR, SyscallSP, SyscallPC, SyscallBP, Status, ID, Reason, Locked, Parent, MadeAt int
	// In runtime.m: procid and curg.
	ThreadID, Current int
}

// size returns how many bytes of runtime.g are needed.
func (l *Layout) size() int {
	n := 0
	for _, off := range [...]int{l.BP, l.LR, l.SyscallSP, l.SyscallPC, l.SyscallBP, l.Status, l.ID, l.Reason, l.Locked,
		l.Parent, l.MadeAt} {
		n = max(n, off+8)
	}
	return n
}

// runtimeLayouts are the layouts on 64-bit Linux, by the minor number of the first version that has them. They were compared
// with the debugging information of each version's Go tool chain, or with the output of programs of that version.
var runtimeLayouts = map[int]Layout{
	16: {BP: 104, LR: 96, SyscallSP: 112, SyscallPC: 120, Status: 144, ID: 152, Reason: 176, Locked: 216, MadeAt: 280,
		ThreadID: 72, Current: 192},
	17: {BP: 104, LR: 96, SyscallSP: 112, SyscallPC: 120, Status: 144, ID: 152, Reason: 176, Locked: 232, MadeAt: 296,
		ThreadID: 72, Current: 192},
	21: {BP: 104, LR: 96, SyscallSP: 112, SyscallPC: 120, Status: 144, ID: 152, Reason: 176, Locked: 208,
		Parent: 272, MadeAt: 280, ThreadID: 72, Current: 192},
	23: {BP: 104, LR: 96, SyscallSP: 112, SyscallPC: 120, SyscallBP: 128, Status: 152, ID: 160, Reason: 184, Locked: 216,
		Parent: 280, MadeAt: 288, ThreadID: 72, Current: 192},
	25: {BP: 96, LR: 88, SyscallSP: 104, SyscallPC: 112, SyscallBP: 120, Status: 144, ID: 152, Reason: 176, Locked: 208,
		Parent: 272, MadeAt: 280, ThreadID: 64, Current: 184},
	26: {BP: 96, LR: 88, SyscallSP: 104, SyscallPC: 112, SyscallBP: 120, Status: 144, ID: 152, Reason: 176, Locked: 208,
		Parent: 280, MadeAt: 288, ThreadID: 64, Current: 184},
}

// The oldest and the newest minor version of Go whose layout is known.
const (
	oldest = 16
	newest = 26
)

// LayoutOf returns the offsets for a version of Go, in the form of runtime.Version. The error is ErrRuntimeVersion.
func LayoutOf(version string) (Layout, error) {
	minor, ok := Minor(version)
	if !ok || minor < oldest || minor > newest {
		return Layout{}, fmt.Errorf("%w: %q", ErrRuntimeVersion, version)
	}
	for ; minor > oldest; minor-- {
		if l, ok := runtimeLayouts[minor]; ok {
			return l, nil
		}
	}
	return runtimeLayouts[oldest], nil
}

// Minor returns the minor number of a released version: 26 for go1.26.8. The result is false for a development version,
// or if the text is no version.
func Minor(version string) (int, bool) {
	rest, ok := strings.CutPrefix(version, "go1.")
	if !ok {
		return 0, false
	}
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	// Another number, a release candidate or a vendor's suffix may follow. The layout of a commit between two releases
	// is unknown.
	if end < len(rest) && !strings.ContainsRune(".rb -+ ", rune(rest[end])) || strings.HasPrefix(rest[end:], "-devel") {
		return 0, false
	}
	n, err := strconv.Atoi(rest[:end])
	return n, err == nil
}
