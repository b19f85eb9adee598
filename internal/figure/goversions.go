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

// GoPrograms returns the Go tool chains (such as go1.21.13) and the files of Go programs to test with, from the
// environment. The end of a file's name says which program it is: esbuild or lefthook. GoPrograms skips the test if the
// environment names no tool chains and no programs.
func GoPrograms(t *testing.T) (toolchains, programs []string) {
	t.Helper()
	toolchains = strings.Fields(os.Getenv(toolchainsVariable))
	programs = strings.Fields(os.Getenv(programsVariable))
	if len(toolchains)+len(programs) == 0 {
		t.Skip("without " + toolchainsVariable + " and " + programsVariable + ": make check-go-versions downloads them")
	}
	return toolchains, programs
}
