package authz

// SQLSTATEs of a Denied, from PostgreSQL's errcodes.txt.
const (
	InsufficientPrivilege   = "42501"
	ObjectNotInPrerequisite = "55000"
	InternalError           = "XX000"
)

// Denied is a refusal with the text for the SQL user. The client gets these texts unchanged, so they contain nothing
// that the caller may not know: no path, no name of a role, no text of a query.
type Denied struct {
	SQLState string
	Message  string
	Detail   string // may be empty
	Hint     string // may be empty
	// Unlisted means that the process has no entry in pg_stat_activity, for example because it is about to end.
	Unlisted bool
	// Cause is an error for the worker's log, often nil. The client never gets it.
	Cause error
}

// Error returns message and detail.
func (d *Denied) Error() string {
	if d.Detail == "" {
		return d.Message
	}
	return d.Message + ": " + d.Detail
}

// Unwrap returns the cause, which may be nil.
func (d *Denied) Unwrap() error { return d.Cause }
