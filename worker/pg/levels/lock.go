package levels

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Offsets in bytes of fields of XactLockTableWaitInfo (lmgr.c), RelationData (rel.h) and pg_class. The constants that end in Reach
// are the numbers of bytes that are read of a structure.
const (
	lockRelation  = 8
	lockTuple     = 16
	relationClass = 56 // rd_rel
	relationID    = 72 // rd_id
	relationReach = 80
	className     = 4 // relname
	tupleReach    = 8
)

// tupleLock describes a transaction that waits for another one, as XactLockTableWaitErrorCb (lmgr.c) does. The
// argument, on the stack, has an XLTW_Oper (lmgr.h), a relation and the position of a tuple.
func (r *reader) tupleLock(arg uint64) (backtrace.Level, bool) {
	if _, onStack := r.frameOf(arg); !onStack {
		return backtrace.Level{}, false
	}
	oper, ok1 := r.number(arg)
	relation, ok2 := r.word(arg + lockRelation)
	tuple, ok3 := r.word(arg + lockTuple)
	if !ok1 || !ok2 || !ok3 || oper < 1 || int(oper) > len(lockTexts) {
		return backtrace.Level{}, false
	}
	var position [6]byte
	if tuple == 0 || r.in.Frozen(tuple, position[:]) < len(position) {
		return backtrace.Level{}, false
	}
	part := func(at int) uint32 { return uint32(binary.NativeEndian.Uint16(position[at:])) }
	block, offset := part(0)<<16|part(2), part(4)
	name, ok := r.relation(relation)
	if !ok || offset == 0 || offset > lastLinePointer {
		return backtrace.Level{}, false
	}
	return backtrace.Level{Kind: backtrace.Tuple, Relation: name, Text: fmt.Sprintf(lockTexts[oper-1], block, offset, name)}, true
}

// lockTexts are the texts by XLTW_Oper, beginning with XLTW_Update.
//
//nolint:gochecknoglobals // a table
var lockTexts = [...]string{
	`while updating tuple (%d,%d) in relation "%s"`,
	`while deleting tuple (%d,%d) in relation "%s"`,
	`while locking tuple (%d,%d) in relation "%s"`,
	`while locking updated version (%d,%d) of tuple in relation "%s"`,
	`while inserting index tuple (%d,%d) in relation "%s"`,
	`while checking uniqueness of tuple (%d,%d) in relation "%s"`,
	`while rechecking updated tuple (%d,%d) in relation "%s"`,
	`while checking exclusion constraint on tuple (%d,%d) in relation "%s"`,
}

// relation reads the name of a relation in use. The process's copy of the pg_class row must have the relation's oid.
func (r *reader) relation(relation uint64) (string, bool) {
	class, ok1 := r.word(relation + relationClass)
	id, ok2 := r.number(relation + relationID)
	if !ok1 || !ok2 || id == 0 {
		return "", false
	}
	var row [className]byte
	if r.live(class, row[:]) < len(row) || int32(binary.NativeEndian.Uint32(row[:])) != id {
		return "", false
	}
	name, cut := r.text(r.live, class+className, maxName)
	return name, name != "" && !cut && r.same(relation+relationClass)
}
