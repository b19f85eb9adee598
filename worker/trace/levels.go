package trace

// A Wait is a wait event as in pg_stat_activity: its type and its name, or its number after a # where no table has a
// name. It is empty if the process does not wait.
type Wait struct {
	Class, Event string
}

// A Level is what a PostgreSQL process does in a frame, by its own account.
type Level struct {
	Kind Kind
	// Text is what PostgreSQL's CONTEXT would say, without the data of a COPY.
	Text string
	// Function is a PL/pgSQL function's signature, or the name of one in another language.
	Function string
	// Line is a line of the function's body or of a COPY's input, 0 if there is none.
	Line int
	// Statement is the kind of a PL/pgSQL statement, or a phrase in its place.
	Statement string
	// Relation is what is copied or vacuumed, or has the row that is waited for.
	Relation string
	// Query is an SQL statement or expression in a function; Cut is set if there is more of it.
	Query string
	Cut   bool
}

// A Kind says what a level is.
type Kind string

// The kinds of levels.
const (
	PLpgSQL Kind = "plpgsql"
	SQL     Kind = "sql"
	SPI     Kind = "statement"
	Copy    Kind = "copy"
	Vacuum  Kind = "vacuum"
	// Tuple is a row whose last writer's end is waited for.
	Tuple    Kind = "tuple"
	PLPerl   Kind = "plperl"
	PLPython Kind = "plpython"
)
