package levels

import pglayout "pg_stat_backtrace/worker/pg/layout"

// layout has the offsets, in bytes, of the fields that are read in PostgreSQL's structures on a 64-bit machine. An
// offset of 0 means that the version has no such field, except for first fields.
type layout struct {
	// PLpgSQL_execstate (plpgsql.h); func comes first.
	errStmt, errVar, errText int
	// ErrorContextCallback (elog.h); previous comes first.
	callback, argument int
	// PgBackendStatus.st_changecount (backend_status.h).
	changes int
	// PLpgSQL_function (plpgsql.h).
	signature, oid int
	// The word that _SPI_error_callback (spi.c) prints before the text of an expression.
	expression string
	// Set if the argument of sql_exec_error_callback (functions.c) is an SQLFunctionCache, as from 18 on. Before 18 the
	// argument is an FmgrInfo, which points to the cache.
	sqlCacheIsArgument bool
	copy               copyLayout
	vacuum             vacuumLayout
	parallel           parallelLayout
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
	result := &layout{
		callback: l.ErrorContextCallback.Callback.Int(), argument: l.ErrorContextCallback.Arg.Int(),
		changes: l.PgBackendStatus.StChangecount.Int(),
		errStmt: l.PLpgSQLExecstate.ErrStmt.Int(), errVar: l.PLpgSQLExecstate.ErrVar.Or(0),
		errText: l.PLpgSQLExecstate.ErrText.Int(), signature: l.PLpgSQLFunction.FnSignature.Int(),
		oid: l.PLpgSQLFunction.FnOid.Int(), expression: "SQL expression",
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
	}
	if major >= plpgsqlExpressions {
		result.expression, result.sqlCacheIsArgument = "PL/pgSQL expression", true
	}
	return result
}

// plpgsqlExpressions is the first version that writes "PL/pgSQL expression" instead of "SQL expression".
const plpgsqlExpressions = 18
