package backtrace

// A Wait is a wait event as in pg_stat_activity: its type and its name, or its number after a # where no table has a
// name. It is empty if the process does not wait.
type Wait struct {
	Class, Event string
}

// A Level is one level of PostgreSQL's context in a frame: what the process was doing, in PostgreSQL's words.
type Level struct {
	Kind Kind
	// Text is PostgreSQL's CONTEXT line, without the data of a COPY.
	Text string
	// Function is a PL/pgSQL function's signature, or the name of one in another language.
	Function string
	// Line is a line of the function's body or of a COPY's input, 0 if there is none.
	Line int
	// Statement is the kind of a PL/pgSQL statement, or a phrase in its place.
	Statement string
	// Relation is the relation that is copied or vacuumed, or that has the awaited row.
	Relation string
	// Query is an SQL statement or expression in a function. Cut is set if the text is truncated.
	Query string
	Cut   bool
}

// A Kind is the kind of a level.
type Kind string

// The kinds of levels.
const (
	PLpgSQL Kind = "plpgsql"
	SQL     Kind = "sql"
	SPI     Kind = "statement"
	Copy    Kind = "copy"
	Vacuum  Kind = "vacuum"
	// Tuple is a row for whose last writer the process waits.
	Tuple    Kind = "tuple"
	PLPerl   Kind = "plperl"
	PLPython Kind = "plpython"
)
