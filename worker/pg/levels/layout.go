package levels

import pglayout "pg_stat_backtrace/worker/pg/layout"

// layout has the offsets, in bytes, of the fields that are read in PostgreSQL's structures on a 64-bit machine. An
// offset of 0 means that the version has no such field, except for first fields.
type layout struct {
	// PLpgSQL_execstate (plpgsql.h).
	function, errStmt, errVar, errText int
	// ErrorContextCallback (elog.h).
	previous, callback, argument int
	// PgBackendStatus.st_changecount (backend_status.h).
	changes int
	// PLpgSQL_function, PLpgSQL_stmt, PLpgSQL_variable and PLpgSQL_expr (plpgsql.h).
	signature, oid                int
	cmdType, lineno, variableLine int
	expressionText                int
	// The flags of PLpgSQL_stmt_exit, PLpgSQL_stmt_getdiag, PLpgSQL_stmt_fetch and PLpgSQL_stmt_call (plpgsql.h).
	isExit, isStacked, isMove, isCall int
	// The word that _SPI_error_callback (spi.c) prints before the text of an expression.
	expression string
	// Set if the argument of sql_exec_error_callback (functions.c) is an SQLFunctionCache, as from 18 on. Before 18 the
	// argument is an FmgrInfo, which points to the cache.
	sqlCacheIsArgument bool
	// SPICallbackArg (spi.c).
	spiText, spiMode int
	// FmgrInfo (fmgr.h), SQLFunctionCache and SQLFunctionHashEntry (functions.c), inline_error_callback_arg (clauses.c).
	// sqlName is in SQLFunctionHashEntry if sqlCacheIsArgument is set, else in SQLFunctionCache.
	fnExtra, sqlEntry, sqlName, sqlStatement, inlinedName int
	// PLyExecutionContext and PLyProcedure (plpy_main.h, plpy_procedure.h).
	pythonProcedure, procedureName, isProcedure int
	// pg_enc2name (pg_wchar.h).
	encoding int
	copy     copyLayout
	vacuum   vacuumLayout
	parallel parallelLayout
	lock     lockLayout
}

// lockLayout is XactLockTableWaitInfo (lmgr.c), ItemPointerData (itemptr.h), RelationData (rel.h) and FormData_pg_class
// (pg_class.h).
type lockLayout struct {
	oper, relation, tuple           int
	blockHigh, blockLow, position   int
	tupleSize, classRow, relationID int
	classID, className              int
}

// copyLayout is CopyFromStateData (copyfrom_internal.h).
type copyLayout struct {
	relname, lineno, attname int
	nameOnly                 int // relname_only, from 16 on
}

// parallelLayout is ParallelVacuumState (vacuumparallel.c), from 15 on.
type parallelLayout struct {
	namespace, relname, indname, status int
}

// vacuumLayout is LVRelState (vacuumlazy.c).
type vacuumLayout struct {
	namespace, relname, indname, block, offset, phase int
}

// layoutOf returns the offsets of a major version, nil if it is not known.
func layoutOf(major int) *layout {
	l, ok := pglayout.Of(major)
	if !ok {
		return nil
	}
	c, v, w := &l.CopyFromStateData, &l.LVRelState, &l.ParallelVacuumState
	x, i := &l.XactLockTableWaitInfo, &l.ItemPointerData
	result := &layout{
		previous: l.ErrorContextCallback.Previous.Int(),
		callback: l.ErrorContextCallback.Callback.Int(), argument: l.ErrorContextCallback.Arg.Int(),
		changes:  l.PgBackendStatus.StChangecount.Int(),
		function: l.PLpgSQLExecstate.Func.Int(),
		errStmt:  l.PLpgSQLExecstate.ErrStmt.Int(), errVar: l.PLpgSQLExecstate.ErrVar.Or(0),
		errText: l.PLpgSQLExecstate.ErrText.Int(), signature: l.PLpgSQLFunction.FnSignature.Int(),
		oid: l.PLpgSQLFunction.FnOid.Int(), cmdType: l.PLpgSQLStmt.CmdType.Int(), lineno: l.PLpgSQLStmt.Lineno.Int(),
		variableLine: l.PLpgSQLVariable.Lineno.Int(), expressionText: l.PLpgSQLExpr.Query.Int(), expression: "SQL expression",
		spiText: l.SPICallbackArg.Query.Int(), spiMode: l.SPICallbackArg.Mode.Int(),
		fnExtra: l.FmgrInfo.FnExtra.Int(), sqlName: l.SQLFunctionCache.Fname.Int(),
		isExit: l.PLpgSQLStmtExit.IsExit.Int(), isStacked: l.PLpgSQLStmtGetdiag.IsStacked.Int(),
		isMove: l.PLpgSQLStmtFetch.IsMove.Int(), isCall: l.PLpgSQLStmtCall.IsCall.Int(),
		inlinedName:     l.InlineErrorCallbackArg.Proname.Int(),
		pythonProcedure: l.PLyExecutionContext.CurrProc.Int(), procedureName: l.PLyProcedure.Proname.Int(),
		isProcedure: l.PLyProcedure.IsProcedure.Int(), encoding: l.PgEnc2name.Encoding.Int(),
		copy: copyLayout{
			relname: c.CurRelname.Or(0), lineno: c.CurLineno.Or(0), attname: c.CurAttname.Or(0), nameOnly: c.RelnameOnly.Or(0),
		},
		vacuum: vacuumLayout{
			namespace: v.Relnamespace.Or(0), relname: v.Relname.Or(0), indname: v.Indname.Or(0), block: v.Blkno.Or(0),
			offset: v.Offnum.Or(0), phase: v.Phase.Or(0),
		},
		parallel: parallelLayout{
			namespace: w.Relnamespace.Or(0), relname: w.Relname.Or(0), indname: w.Indname.Or(0), status: w.Status.Or(0),
		},
		lock: lockLayout{
			oper: x.Oper.Int(), relation: x.Rel.Int(), tuple: x.Ctid.Int(),
			blockHigh: i.BiHi.Int(), blockLow: i.BiLo.Int(), position: i.IpPosid.Int(), tupleSize: i.Size.Int(),
			classRow: l.RelationData.RdRel.Int(), relationID: l.RelationData.RdId.Int(),
			classID: l.FormDataPgClass.Oid.Int(), className: l.FormDataPgClass.Relname.Int(),
		},
	}
	if major >= plpgsqlExpressions {
		result.expression, result.sqlCacheIsArgument = "PL/pgSQL expression", true
		result.sqlEntry, result.sqlStatement = l.SQLFunctionCache.Func.Int(), l.SQLFunctionCache.ErrorQueryIndex.Int()
		result.sqlName = l.SQLFunctionHashEntry.Fname.Int()
	}
	return result
}

// plpgsqlExpressions is the first version that writes "PL/pgSQL expression" instead of "SQL expression".
const plpgsqlExpressions = 18
