// Package sqlerror says what went wrong the way PostgreSQL says it: SQLSTATE,
// message, detail and hint. It is the one place where an error of the layers
// below becomes words, for SQL and for the command line alike. The words
// follow the "Error Message Style Guide" of the PostgreSQL documentation.
package sqlerror

// SQLSTATEs that a call can end with.
const (
	NotInPrerequisiteState = "55000"
	InsufficientPrivilege  = "42501"
	ConfigurationLimit     = "53400"
	InvalidParameterValue  = "22023"
	QueryCanceled          = "57014"
	InternalError          = "XX000"
)

// A Fault is an error as PostgreSQL reports one.
type Fault struct {
	SQLState string
	Message  string
	Detail   string
	Hint     string
}

// Error returns the message.
func (f *Fault) Error() string { return f.Message }
