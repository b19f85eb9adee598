package stackoracle

import (
	"strings"
	"testing"
)

// TestInterpreters compares big independent programs, each asleep in a read of its standard input.
func TestInterpreters(t *testing.T) {
	tellTally(t)
	if testing.Short() {
		t.Skip("takes long: not with -short")
	}
	for _, i := range []struct{ name, arguments string }{
		{"python3", "-c|import os,functools\nprint('here', flush=True)\nsorted([1], key=lambda x: os.read(0, 1))"},
		{"perl", "-e|$|=1; print qq(here\\n); sub f { read(STDIN, my $x, 1) } my @l = sort { f() } (2, 1)"},
		{"node", "-e|console.log('here'); require('fs').readSync(0, Buffer.alloc(1))"},
		{"node", "--use-largepages=on|-e|console.log('here'); require('fs').readSync(0, Buffer.alloc(1))"},
		{"gdb", "-nx|-q|-batch|-ex|python import os; os.write(1, b'here\\n'); os.read(0, 1)"},
		{"bash", "-c|echo here; f() { read -r x; }; f"},
	} {
		t.Run(i.name, func(t *testing.T) {
			if strings.Contains(i.arguments, "largepages") && randomStops(t) < 10 {
				t.Skip("without PGSB_TEST_FULL=1: gdb needs a minute for a second node")
			}
			need(t, i.name)
			arguments := strings.Split(i.arguments, "|")
			if i.name == "perl" { // its program contains bars
				arguments = strings.SplitN(i.arguments, "|", 2)
			}
			pid := launch(t, false, i.name, arguments...)
			asleep(t, i.name, pid)
			compare(t, subject{name: i.name, pid: pid})
		})
	}
}
