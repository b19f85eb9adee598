package backtrace

// A Wait is a wait event as in pg_stat_activity: its type and its name, or its number after a # where no table has a
// name. It is empty if the process does not wait.
type Wait struct {
	Class, Event string
}

// A Level is one line of PostgreSQL's error context (CONTEXT) that belongs to a frame: what the process does there.
type Level struct {
	Kind Kind
	// Text is PostgreSQL's CONTEXT line, without the data of a COPY.
	Text string
	// Function is the signature of a PL/pgSQL function, or the name of a function in another language.
	Function string
	// Line is the number of a line in the function's body or in the input of COPY; 0: none.
	Line int
	// Statement is the kind of a PL/pgSQL statement, or a phrase such as "during function entry".
	Statement string
	// Relation is the relation that is copied or vacuumed, or that has the awaited row.
	Relation string
	// Query is an SQL statement or expression in a function. Cut is set if the text is truncated.
	Query string
	Cut   bool
}

// A Kind says to which language or command of PostgreSQL a Level belongs.
type Kind string

// The kinds of levels.
const (
	PLpgSQL Kind = "plpgsql"
	SQL     Kind = "sql"
	SPI     Kind = "statement"
	Copy    Kind = "copy"
	Vacuum  Kind = "vacuum"
	// Tuple: the process waits for the transaction that last wrote a row.
	Tuple    Kind = "tuple"
	PLPerl   Kind = "plperl"
	PLPython Kind = "plpython"
)
