package levels

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Library is the base name of PL/pgSQL's library.
const Library = plpgsqlModule

const (
	plpgsqlModule = "plpgsql.so"
	execCallback  = "plpgsql_exec_error_callback"
	// inlineBlock is the signature of a DO block (plpgsql_compile_inline).
	inlineBlock = "inline_code_block"
	// maxLine bounds a line number; a function's source is at most 1 GB.
	maxLine = 1 << 28
	// maxSignature bounds a signature: 100 arguments of long, quoted and qualified names.
	maxSignature = 16 << 10
	// maxPhrase bounds err_text, which is one of some phrases in pl_exec.c.
	maxPhrase = 128
)

// estate lists the pointers in a PLpgSQL_execstate that plpgsql reads: the function, the statement and the variable.
func (l *layout) estate() []Deref {
	derefs := []Deref{
		{Offset: l.function, Length: max(l.signature+pointerSize, l.oid+numberSize)},
		{Offset: l.errStmt, Length: max(l.cmdType+numberSize, l.lineno+numberSize, l.isExit+1, l.isStacked+1, l.isMove+1, l.isCall+1)},
	}
	if l.errVar != 0 {
		derefs = append(derefs, Deref{Offset: l.errVar, Length: l.variableLine + numberSize})
	}
	return derefs
}

// plpgsql describes a level as plpgsql_exec_error_callback (pl_exec.c) does.
func (r *reader) plpgsql(estate uint64) (backtrace.Level, bool) {
	none := backtrace.Level{}
	if _, onStack := r.frameOf(estate); !onStack {
		return none, false
	}
	signature, ok := r.signature(estate)
	if !ok {
		return none, false
	}
	level := backtrace.Level{Kind: backtrace.PLpgSQL, Function: signature, Text: "PL/pgSQL function " + signature}
	stmt, ok1 := r.word(estate + uint64(r.layout.errStmt))
	phrase, ok2 := r.phrase(estate)
	line, hasLine, ok3 := r.line(estate, stmt)
	if !ok1 || !ok2 || !ok3 {
		return none, false
	}
	switch {
	case phrase != "" && hasLine:
		level.Line, level.Statement = line, phrase
		level.Text += fmt.Sprintf(" line %d %s", line, phrase)
	case phrase != "":
		level.Statement = phrase
		level.Text += " " + phrase
	case stmt != 0 && hasLine:
		kind, ok := r.statement(stmt)
		if !ok {
			return none, false
		}
		level.Line, level.Statement = line, kind
		level.Text += fmt.Sprintf(" line %d at %s", line, kind)
	}
	return level, true
}

// simpleStatement describes a statement that PL/pgSQL evaluates without SPI, as plpgsql_execsql_error_callback
// (pl_exec.c) does from 19 on. The argument is a PLpgSQL_expr, which points to the text. The function is in use, so
// the text stays valid.
func (r *reader) simpleStatement(expr uint64) (backtrace.Level, bool) {
	at := expr + uint64(r.layout.expressionText)
	query, ok := r.word(at)
	if !ok {
		return backtrace.Level{}, false
	}
	text, cut := r.text(r.live, query, maxStatement)
	return statementLevel("SQL statement", text, cut), text != "" && r.same(at)
}

// reports returns true if a function without a symbol is plpgsql_exec_error_callback. Only that function reads both
// err_stmt and err_text, so its code contains both offsets. Code with both offsets also confirms the layout.
func (r *reader) reports(callback uint64, size int) bool {
	const most = 1024
	if size <= 0 || size > most {
		return false
	}
	code := make([]byte, size)
	if r.live(callback, code) < size {
		return false
	}
	for _, off := range []int{r.layout.errStmt, r.layout.errText} {
		if !bytes.Contains(code, binary.LittleEndian.AppendUint32(nil, uint32(off))) {
			return false
		}
	}
	return true
}

// signature reads func->fn_signature. The function is in use, so the name stays valid. After it has read the name, signature
// checks that the pointer to the name has not changed.
func (r *reader) signature(estate uint64) (string, bool) {
	function, ok := r.word(estate + uint64(r.layout.function))
	if !ok {
		return "", false
	}
	at := function + uint64(r.layout.signature)
	p, ok1 := r.word(at)
	oid, ok2 := r.number(function + uint64(r.layout.oid))
	if !ok1 || !ok2 {
		return "", false
	}
	text, cut := r.text(r.live, p, maxSignature)
	if cut || text == "" || !r.same(at) {
		return "", false
	}
	if text == inlineBlock {
		return text, oid == 0
	}
	return text, oid != 0 && len(text) >= len("f()") && text[len(text)-1] == ')'
}

// phrase reads err_text, a constant of the library. It returns "" if err_text is null.
func (r *reader) phrase(estate uint64) (string, bool) {
	p, ok := r.word(estate + uint64(r.layout.errText))
	if !ok || p == 0 {
		return "", ok
	}
	if !r.constant(p) {
		return "", false
	}
	text, cut := r.text(r.live, p, maxPhrase)
	return text, text != "" && !cut
}

// constant reports whether an address is in the library's file.
func (r *reader) constant(addr uint64) bool { return r.in.Code(addr).Module == plpgsqlModule }

// line reads the line number. From version 15 on, this is the line of the variable that is being initialised, if any,
// and else the line of the statement. Version 14 also prints line 0 of a statement.
func (r *reader) line(estate, stmt uint64) (line int, has, ok bool) {
	at := uint64(0)
	if r.layout.errVar != 0 {
		variable, ok := r.word(estate + uint64(r.layout.errVar))
		if !ok {
			return 0, false, false
		}
		if variable != 0 {
			at = variable + uint64(r.layout.variableLine)
		}
	}
	if at == 0 && stmt != 0 {
		at = stmt + uint64(r.layout.lineno)
	}
	if at == 0 {
		return 0, false, true
	}
	n, ok := r.number(at)
	if !ok || n < 0 || n > maxLine {
		return 0, false, false
	}
	return int(n), n > 0 || r.layout.errVar == 0, true
}

// statement names a statement as plpgsql_stmt_typename (pl_funcs.c) does. The order is that in PLpgSQL_stmt_type
// (plpgsql.h), which is the same from 14 to 19.
func (r *reader) statement(stmt uint64) (string, bool) {
	kind, ok := r.number(stmt + uint64(r.layout.cmdType))
	if !ok || kind < 0 || int(kind) >= len(statements) {
		return "", false
	}
	s := &statements[kind]
	if s.other == "" {
		return s.name, true
	}
	flag, ok := r.flag(stmt + uint64(s.flag(r.layout)))
	if flag {
		return s.name, ok
	}
	return s.other, ok
}

// statements are the names, by PLpgSQL_stmt_type. If a type has two names, flag returns the offset of a bool in the
// statement's structure: true selects name, false selects other.
//
//nolint:gochecknoglobals // a table
var statements = [...]struct {
	name, other string
	flag        func(*layout) int
}{
	{name: "statement block"},
	{name: "assignment"},
	{name: "IF"},
	{name: "CASE"},
	{name: "LOOP"},
	{name: "WHILE"},
	{name: "FOR with integer loop variable"},
	{name: "FOR over SELECT rows"},
	{name: "FOR over cursor"},
	{name: "FOREACH over array"},
	{name: "EXIT", other: "CONTINUE", flag: func(l *layout) int { return l.isExit }},
	{name: "RETURN"},
	{name: "RETURN NEXT"},
	{name: "RETURN QUERY"},
	{name: "RAISE"},
	{name: "ASSERT"},
	{name: "SQL statement"},
	{name: "EXECUTE"},
	{name: "FOR over EXECUTE statement"},
	{name: "GET STACKED DIAGNOSTICS", other: "GET DIAGNOSTICS", flag: func(l *layout) int { return l.isStacked }},
	{name: "OPEN"},
	{name: "MOVE", other: "FETCH", flag: func(l *layout) int { return l.isMove }},
	{name: "CLOSE"},
	{name: "PERFORM"},
	{name: "CALL", other: "DO", flag: func(l *layout) int { return l.isCall }},
	{name: "COMMIT"},
	{name: "ROLLBACK"},
}
