package levels

import "pg_stat_backtrace/worker/naming/backtrace"

// perl names a function in Perl as plperl_exec_callback (plperl.c) does. The argument is the function's name.
func (r *reader) perl(arg uint64) (backtrace.Level, bool) {
	name, cut := r.text(r.in.Frozen, arg, maxName)
	return backtrace.Level{Kind: backtrace.PLPerl, Function: name, Text: `PL/Perl function "` + name + `"`},
		name != "" && !cut
}

// perlBlock describes a DO block in Perl (plperl_inline_callback).
func (*reader) perlBlock(arg uint64) (backtrace.Level, bool) {
	return backtrace.Level{Kind: backtrace.PLPerl, Function: inlineBlock, Text: "PL/Perl anonymous code block"}, arg == 0
}

// python names a function in Python as plpython_error_callback (plpy_main.c) does. The argument is a
// PLyExecutionContext (plpy_main.h), which points to a PLyProcedure (plpy_procedure.h). The pointer is
// null while the function is being looked up.
func (r *reader) python(arg uint64) (backtrace.Level, bool) {
	current := arg + uint64(r.layout.pythonProcedure)
	procedure, ok := r.word(current)
	if !ok || procedure == 0 {
		return backtrace.Level{}, false
	}
	at, ok := r.liveWord(procedure + uint64(r.layout.procedureName))
	if !ok {
		return backtrace.Level{}, false
	}
	var flag [1]byte
	name, cut := r.text(r.live, at, maxName)
	if name == "" || cut || r.live(procedure+uint64(r.layout.isProcedure), flag[:]) < 1 || flag[0] > 1 || !r.same(current) {
		return backtrace.Level{}, false
	}
	kind := "function"
	if flag[0] == 1 {
		kind = "procedure"
	}
	return backtrace.Level{Kind: backtrace.PLPython, Function: name, Text: "PL/Python " + kind + ` "` + name + `"`}, true
}

// pythonBlock describes a DO block in Python (plpython_inline_error_callback).
func (*reader) pythonBlock(arg uint64) (backtrace.Level, bool) {
	return backtrace.Level{Kind: backtrace.PLPython, Function: inlineBlock, Text: "PL/Python anonymous code block"}, arg != 0
}
