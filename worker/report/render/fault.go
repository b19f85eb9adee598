package render

import "pg_stat_backtrace/worker/limits"

// SQLSTATEs with which a call can end.
const (
	NotInPrerequisiteState = "55000"
	InsufficientPrivilege  = "42501"
	ConfigurationLimit     = limits.SQLState
	InvalidParameterValue  = "22023"
	QueryCanceled          = "57014"
	InternalError          = "XX000"
)

// A Fault is an error in the form in which PostgreSQL reports errors.
type Fault struct {
	SQLState string
	Message  string
	Detail   string
	Hint     string
}

// Error returns the message.
func (f *Fault) Error() string { return f.Message }
