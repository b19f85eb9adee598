package pgtest

import (
	"os"
	"strings"
)

// Tests must not depend on the shell that runs them: libpq's variables would direct their connections, and those of
// the programs that they start, to another server.
func init() { //nolint:gochecknoinits // before any test, and before TestMain
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if isLibpq(name) {
			_ = os.Unsetenv(name) // fails for malformed names only
		}
	}
}

// isLibpq reports whether a variable is one of libpq's: PG and a word. PG_CONFIG and PGSB_TEST_BINDIRS are ours.
func isLibpq(name string) bool {
	return strings.HasPrefix(name, "PG") && !strings.Contains(name, "_") || name == "PGCONNECT_TIMEOUT"
}
