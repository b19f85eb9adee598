package authz

// SQLSTATEs of a Denied, from PostgreSQL's errcodes.txt.
const (
	InsufficientPrivilege      = "42501"
	ObjectNotInPrerequisite    = "55000"
	ConfigurationLimitExceeded = "53400"
	InternalError              = "XX000"
)

// Denied is a refusal, worded for the SQL user: it goes to the client as it is, so it tells nothing that the caller may
// not know (no path, no name of a role, no text of a query).
type Denied struct {
	SQLState string
	Message  string
	Detail   string // may be empty
	Hint     string // may be empty
	// Unlisted: the process has no entry in pg_stat_activity, as one that is about to end.
	Unlisted bool
	// Cause is for the worker's log, nil in most cases; it never goes to the client.
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
