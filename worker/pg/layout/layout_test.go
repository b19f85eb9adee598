package layout_test

import (
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

func TestAbsentIsTheDefault(t *testing.T) {
	var o layout.Offset
	if o.Known() || o.Or(-1) != -1 || o.Uint64() < 1<<48 {
		t.Errorf("the zero value is %d", o.Int())
	}
	if zero := layout.At(0); !zero.Known() || zero.Int() != 0 || zero.Or(-1) != 0 {
		t.Error("the offset 0 is absent")
	}
	if _, ok := layout.Of(13); ok {
		t.Error("version 13 has a layout")
	}
}

// TestMajors verifies that each version has the members on which readers depend.
func TestMajors(t *testing.T) {
	for major := 14; major <= 19; major++ {
		l, ok := layout.Of(major)
		if !ok || l.Major != major || l.Source == "" {
			t.Fatalf("version %d has no layout", major)
		}
		for name, o := range map[string]layout.Offset{
			"PGPROC.pid": l.PGPROC.PID, "PGPROC.wait_event_info": l.PGPROC.WaitEventInfo, "size of PGPROC": l.PGPROC.Size,
			"PGPROC.waitLock": l.PGPROC.WaitLock, "PROCLOCK.holdMask": l.PROCLOCK.HoldMask,
			"AllocBlockData.endptr": l.AllocBlockData.Endptr, "GenerationBlock.endptr": l.GenerationBlock.Endptr,
			"AllocSetContext.initBlockSize": l.AllocSetContext.InitBlockSize, "SlabBlock.nfree": l.SlabBlock.Nfree,
			"SlabContext.blocklist": l.SlabContext.Blocklist, "MemoryContextData.ident": l.MemoryContextData.Ident,
			"SPICallbackArg.mode": l.SPICallbackArg.Mode, "fn_extra": l.FmgrInfo.FnExtra,
			"XactLockTableWaitInfo.rel": l.XactLockTableWaitInfo.Rel, "size of ItemPointerData": l.ItemPointerData.Size,
			"rd_rel": l.RelationData.RdRel, "rd_id": l.RelationData.RdId, "relname": l.FormDataPgClass.Relname,
			"PLpgSQL_variable.lineno": l.PLpgSQLVariable.Lineno, "is_exit": l.PLpgSQLStmtExit.IsExit,
			"is_stacked": l.PLpgSQLStmtGetdiag.IsStacked, "is_move": l.PLpgSQLStmtFetch.IsMove, "is_call": l.PLpgSQLStmtCall.IsCall,
			"is_procedure": l.PLyProcedure.IsProcedure, "pg_enc2name.encoding": l.PgEnc2name.Encoding,
			"apprelids": l.Append.Apprelids, "Bitmapset.nwords": l.Bitmapset.Nwords,
			"st_state": l.PgBackendStatus.StState, "err_stmt": l.PLpgSQLExecstate.ErrStmt,
		} {
			if !o.Known() {
				t.Errorf("%d: %s is absent", major, name)
			}
		}
		if _, ok := layout.LocksOf(major); !ok {
			t.Errorf("%d: the places of locks are not known", major)
		}
		if len(l.BackendTypes) == 0 || len(l.BackendStates) == 0 {
			t.Errorf("%d has no names of types or states", major)
		}
	}
}
