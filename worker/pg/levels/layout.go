package levels

// layout has the offsets, in bytes, of the fields that are read in PostgreSQL's structures on a 64-bit machine. An
// offset of 0 means that the version has no such field, except for first fields.
type layout struct {
	// PLpgSQL_execstate (plpgsql.h); func comes first.
	errStmt, errVar, errText int
	// PLpgSQL_function (plpgsql.h).
	signature, oid int
	// What _SPI_error_callback (spi.c) calls an expression.
	expression string
	// SQLFunctionCache (functions.c): from 18 on the argument is the cache itself, before it is an FmgrInfo.
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

//nolint:gochecknoglobals // a table
var layouts = map[int]*layout{
	14: {
		errStmt: 216, errText: 224, signature: 0, oid: 8, expression: "SQL expression",
		copy:   copyLayout{relname: 224, lineno: 232, attname: 240},
		vacuum: vacuumLayout{namespace: 88, relname: 96, indname: 104, block: 112, offset: 116, phase: 120},
	},
	15: {
		errStmt: 216, errVar: 224, errText: 232, signature: 0, oid: 8, expression: "SQL expression",
		copy:   copyLayout{relname: 232, lineno: 240, attname: 248},
		vacuum: laterVacuum, parallel: parallelLayout{namespace: 96, relname: 104, indname: 112, status: 120},
	},
	16: {
		errStmt: 208, errVar: 216, errText: 224, signature: 0, oid: 8, expression: "SQL expression",
		copy:   copyLayout{relname: 248, lineno: 256, attname: 264, nameOnly: 280},
		vacuum: laterVacuum, parallel: laterParallel,
	},
	17: {
		errStmt: 208, errVar: 216, errText: 224, signature: 0, oid: 8, expression: "SQL expression",
		copy:   copyLayout{relname: 272, lineno: 280, attname: 288, nameOnly: 304},
		vacuum: laterVacuum, parallel: laterParallel,
	},
	18: {
		errStmt: 208, errVar: 216, errText: 224, signature: 40, oid: 48, expression: "PL/pgSQL expression",
		sqlCacheIsArgument: true,
		copy:               copyLayout{relname: 288, lineno: 296, attname: 304, nameOnly: 320},
		vacuum:             laterVacuum, parallel: laterParallel,
	},
	19: {
		errStmt: 208, errVar: 216, errText: 224, signature: 40, oid: 48, expression: "PL/pgSQL expression",
		sqlCacheIsArgument: true,
		copy:               copyLayout{relname: 296, lineno: 304, attname: 312, nameOnly: 328},
		vacuum:             laterVacuum, // parallel: not compared with a server yet
	},
}

//nolint:gochecknoglobals // a table
var laterParallel = parallelLayout{namespace: 104, relname: 112, indname: 120, status: 128}

//nolint:gochecknoglobals // a table
var laterVacuum = vacuumLayout{namespace: 104, relname: 112, indname: 120, block: 128, offset: 132, phase: 136}
