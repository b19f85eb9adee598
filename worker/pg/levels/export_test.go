package levels

// For tests from outside.

// WaitEvents returns the table of a version.
func WaitEvents(major int) (map[uint32]string, error) { return waitEvents(major) }

// WaitClass returns the name of a class in a version.
func WaitClass(major int, number uint32) string { return waitClass(major, number) }
