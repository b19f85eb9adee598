//go:build !amd64

package clusterbpf

import "structs"

// These are copies of the types that bpf2go generates from the C code for x86_64. This architecture has no BPF programs.

type clusterHead struct {
	_       structs.HostLayout
	Kind    uint32
	Pid     uint32
	Started uint64
	At      uint64
	Number  uint64
	First   uint64
	Second  uint64
}

type clusterLevel struct {
	_           structs.HostLayout
	FunctionAt  uint64
	SignatureAt uint64
	StatementAt uint64
	Function    [56]uint8
	Statement   [56]uint8
	Signature   [128]uint8
}

type clusterProcess struct {
	_            structs.HostLayout
	Started      uint64
	Since        uint64
	On           uint64
	Off          uint64
	Number       uint64
	Due          uint64
	Stack        uint64
	Without      uint64
	Query        uint64
	Event        uint32
	State        uint32
	Runnable     uint32
	Running      uint32
	SameNs       uint64
	SameWaits    uint64
	SameDelay    uint64
	SameQuery    uint64
	SameEvent    uint32
	SameState    uint32
	EntryChanges uint32
	EntryState   uint32
	EntryQuery   uint64
	Exec         uint64
	Delay        uint64
	UndividedNs  uint64
	Undivided    uint32
	Noted        uint32
	NotedDelay   uint64
	NotedQueued  uint64
	Clock        uint64
}

type clusterRecord struct {
	_      structs.HostLayout
	Head   clusterHead
	Labels struct {
		_            structs.HostLayout
		Flags        uint32
		Event        uint32
		Type         uint32
		Database     uint32
		User         uint32
		State        uint32
		Query        uint64
		Name         [64]uint8
		DatabaseName [64]uint8
		UserName     [64]uint8
		Worker       [64]uint8
	}
	Registers   [21]uint64
	StackStart  uint64
	StackLength uint64
	Context     uint64
	NumLevels   uint32
	Unused      uint32
	Levels      [5]clusterLevel
}

type clusterWaitKey struct {
	_       structs.HostLayout
	Query   uint64
	Started uint64
	Pid     uint32
	Event   uint32
	State   uint32
	Unused  uint32
}

type clusterWaitTime struct {
	_     structs.HostLayout
	Ns    uint64
	Waits uint64
	Delay uint64
}
