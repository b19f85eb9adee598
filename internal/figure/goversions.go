// Package goversions returns the versions of Go with which tests run. scripts/check-go.sh sets them in the
// environment. The package does not depend on the tests.
package goversions

import (
	"os"
	"strings"
	"testing"
)

const (
	toolchainsVariable = "PGSB_GO_TOOLCHAINS"
	programsVariable   = "PGSB_GO_PROGRAMS"
)

// Wanted returns tool chains, such as go1.21.13, and files of programs (esbuild or lefthook, by the end of their
// names). It skips the test if there are none.
func Wanted(t *testing.T) (toolchains, programs []string) {
	t.Helper()
	toolchains = strings.Fields(os.Getenv(toolchainsVariable))
	programs = strings.Fields(os.Getenv(programsVariable))
	if len(toolchains)+len(programs) == 0 {
		t.Skip("without " + toolchainsVariable + " and " + programsVariable + ": make check-go-versions downloads them")
	}
	return toolchains, programs
}
