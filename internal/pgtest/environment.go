package pgtest

import (
	"os"
	"strings"
)

// Tests must not depend on the environment of the shell that runs them. Variables of libpq would direct the connections of the
// tests, and of the programs that tests start, to another server.
func init() { //nolint:gochecknoinits // before any test, and before TestMain
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if isLibpq(name) {
			_ = os.Unsetenv(name) // fails for malformed names only
		}
	}
}

// isLibpq reports whether an environment variable belongs to libpq: PG and a word. PG_CONFIG and PGSB_TEST_BINDIRS do
// not belong to libpq.
func isLibpq(name string) bool {
	return strings.HasPrefix(name, "PG") && !strings.Contains(name, "_") || name == "PGCONNECT_TIMEOUT"
}
