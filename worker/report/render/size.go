package render

import "fmt"

// Size returns a number of bytes as PostgreSQL's pg_size_pretty prints it.
func Size(bytes uint64) string {
	const change = 10 * 1024
	units := []string{"bytes", "kB", "MB", "GB", "TB"}
	i := 0
	for bytes >= change && i < len(units)-1 {
		bytes, i = (bytes+512)/1024, i+1 //nolint:mnd // rounded
	}
	return fmt.Sprintf("%d %s", bytes, units[i])
}
