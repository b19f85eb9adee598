package pgcontext

// For tests from outside.

// WaitEvents returns the table of a version.
func WaitEvents(major int) (map[uint32]string, error) { return waitEvents(major) }

// WaitClasses returns the names of the classes.
func WaitClasses() map[uint32]string { return waitClasses }
