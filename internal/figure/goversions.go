package figure

import (
	"os"
	"strings"
	"testing"
)

const (
	toolchainsVariable = "PGSB_GO_TOOLCHAINS"
	programsVariable   = "PGSB_GO_PROGRAMS"
)

// GoPrograms returns tool chains, such as go1.21.13, and files of programs (esbuild or lefthook, by the end of their
// names). It skips the test if there are none.
func GoPrograms(t *testing.T) (toolchains, programs []string) {
	t.Helper()
	toolchains = strings.Fields(os.Getenv(toolchainsVariable))
	programs = strings.Fields(os.Getenv(programsVariable))
	if len(toolchains)+len(programs) == 0 {
		t.Skip("without " + toolchainsVariable + " and " + programsVariable + ": make check-go-versions downloads them")
	}
	return toolchains, programs
}
