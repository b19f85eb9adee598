package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"pg_stat_backtrace/worker/pg/layout"
)

// firstBarrier is the first major version that emits a barrier. Version 14 has the slots, but emits no barriers.
const firstBarrier = 15

var (
	// ErrBarrierVersion means that the offsets of this major version are not known.
	ErrBarrierVersion = errors.New("barriers of this version of PostgreSQL are not known")
	// ErrNoBarriers means that the slots were not found, or that the server's shared memory does not have the layout of
	// its version.
	ErrNoBarriers = errors.New("the slots for barriers were not found in the server's shared memory")
)

// BarrierMemory fills p with the server's memory at addr. It returns an error unless all of p was read.
type BarrierMemory func(addr uint64, p []byte) error

// SharedArea is the server's main shared memory segment, from Start up to End.
type SharedArea struct{ Start, End uint64 }

const (
	segmentMagic    = 679834894 // PGShmemHeader.magic
	indexSearched   = 1 << 20   // bytes at the start of the segment: the server creates the index there, before all else
	maxBarrierSlots = 1 << 19   // more than max_connections allows
	barrierStruct   = "ProcSignal"
)

// PendingBarriers returns the ids of the processes that have not absorbed the latest barrier, in the server's PID
// namespace. The result is nil if all processes have absorbed it.
func PendingBarriers(major int, read BarrierMemory, segment SharedArea) ([]int, error) {
	l, ok := layout.Of(major)
	if !ok || l.Major < firstBarrier || !l.ProcSignalSlot.PssBarrierGeneration.Known() {
		return nil, fmt.Errorf("%w: %d", ErrBarrierVersion, major)
	}
	at, size, err := findBarrierSlots(read, segment, l)
	if err != nil {
		return nil, err
	}
	slot, generationAt := l.ProcSignalSlot.Size.Uint64(), l.ProcSignalSlot.PssBarrierGeneration.Uint64()
	firstSlot := l.ProcSignalHeader.PshSlot.Uint64()
	if size <= firstSlot || (size-firstSlot)%slot != 0 || (size-firstSlot)/slot > maxBarrierSlots {
		return nil, fmt.Errorf("%w: they have %d bytes", ErrNoBarriers, size)
	}
	slots := make([]byte, size)
	if err := read(at, slots); err != nil {
		return nil, fmt.Errorf("read the slots for barriers: %w", err)
	}
	latest := binary.NativeEndian.Uint64(slots)
	var pids []int
	for slots = slots[firstSlot:]; len(slots) > 0; slots = slots[slot:] {
		pid := int32(binary.NativeEndian.Uint32(slots))
		generation := binary.NativeEndian.Uint64(slots[generationAt:])
		switch {
		case pid < 0:
			return nil, fmt.Errorf("%w: a slot has the process id %d", ErrNoBarriers, pid)
		case pid > 0 && generation < latest:
			pids = append(pids, int(pid))
		}
	}
	return pids, nil
}

// findBarrierSlots looks for the slots in the index of the shared memory (ShmemIndexEnt).
func findBarrierSlots(read BarrierMemory, segment SharedArea, l *layout.Layout) (at, size uint64, err error) {
	start := make([]byte, min(indexSearched, segment.End-segment.Start))
	if err := read(segment.Start, start); err != nil {
		return 0, 0, fmt.Errorf("read the server's shared memory: %w", err)
	}
	if len(start) < 4 || binary.NativeEndian.Uint32(start) != segmentMagic {
		return 0, 0, fmt.Errorf("%w: the segment has no header", ErrNoBarriers)
	}
	location, sizeAt := l.ShmemIndexEnt.Location.Int(), l.ShmemIndexEnt.SegmentSize.Int()
	key := make([]byte, location) // the name, padded with zeros, fills the bytes before the address
	copy(key, barrierStruct)
	for i := 0; ; {
		next := bytes.Index(start[i:], key)
		if next < 0 || i+next+sizeAt+8 > len(start) {
			return 0, 0, ErrNoBarriers
		}
		i += next
		at, size = binary.NativeEndian.Uint64(start[i+location:]), binary.NativeEndian.Uint64(start[i+sizeAt:])
		if at > segment.Start && at < segment.End && size <= segment.End-at {
			return at, size, nil
		}
		i++
	}
}
